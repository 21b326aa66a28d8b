from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachegen_cli.documents import RUN, Documents, fingerprint

rng = np.random.default_rng(3)
ONE, OTHER = (rng.integers(0, 40_000, 900).tolist() for _ in range(2))


def test_a_text_is_known_wherever_it_is_cut():
    known = Documents.of([("one", ONE)])
    assert known.share(ONE) == 1
    assert known.share(ONE[137:700]) == 1
    assert known.share(OTHER) == 0
    mixed = known.share(ONE[:450] + OTHER[:450])
    assert 0.35 < mixed < 0.65


def test_a_short_text_is_known_too():
    known = Documents.of([("short", ONE[: RUN - 5])])
    assert known.share(ONE[: RUN - 5]) == 1 and known.share(OTHER[: RUN - 5]) == 0


@given(st.lists(st.integers(0, 5), max_size=80))
def test_every_text_has_a_fingerprint(tokens):
    assert fingerprint(tokens).size >= 1


def test_arrays_hold_it_all():
    known = Documents.of([("one", ONE), ("other", OTHER)])
    again = Documents.from_arrays(known.names, known.to_arrays())
    assert again.names == ("one", "other")
    assert (again.hashes == known.hashes).all() and again.share(OTHER) == 1


def test_of_no_texts():
    assert Documents.of([]).share(ONE) == 0

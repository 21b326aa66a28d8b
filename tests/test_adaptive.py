from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachegen_cli import InputError, decode
from cachegen_cli.coding.adaptive import Adaptive, decode_adaptive
from cachegen_cli.coding.repeats import anonymous, blocks, repeats
from cachegen_cli.coding.streams import decode_wide, encode_wide


def nothing(tokens):
    return repeats(range(tokens))


@given(
    st.integers(1, 20), st.integers(1, 70), st.integers(0, 5),
    st.sampled_from([0, 0.3, 5, 1e3, 1e6]),
    st.integers(1, 30),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_codes_come_back(channels, tokens, seed, size, vocabulary):
    rng = np.random.default_rng(seed)
    codes = np.rint(rng.standard_t(2, (channels, tokens)) * size).astype(np.int64)
    codes = np.clip(codes, -(1 << 30), 1 << 30).astype(np.int32)
    found = repeats(rng.integers(0, vocabulary, tokens).tolist())
    fit = Adaptive(codes, found)
    payload = fit.payload(codes)
    assert len(payload) <= fit.payload_bytes <= 1.001 * len(payload) + 16
    assert (decode_adaptive(payload, channels, tokens, found) == codes).all()


def test_no_tables_cost_little():
    """Gaussian channels of different widths: near their entropy at 900 tokens."""
    rng = np.random.default_rng(1)
    widths = np.exp(rng.normal(size=(64, 1)))
    codes = np.rint(rng.normal(size=(64, 900)) * widths * 3).astype(np.int32)
    ideal = sum(
        (counts * np.log2(900 / counts)).sum()
        for counts in (np.unique(row, return_counts=True)[1] for row in codes)
    )
    bits = 8 * Adaptive(codes, nothing(900)).payload_bytes
    assert ideal < bits < 1.05 * ideal


def test_repeated_rows_cost_little():
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 20, 400)
    rows = rng.normal(size=(20, 48)) * 10
    codes = np.rint(rows[tokens] + rng.normal(size=(400, 48)) * 0.5).astype(np.int32).T
    alone = Adaptive(codes, nothing(400)).payload_bytes
    assert Adaptive(codes, repeats(tokens.tolist())).payload_bytes < 0.5 * alone


def test_repeats_are_the_last_with_the_longest_context():
    text = [1, 2, 3, 9, 1, 2, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 9, 9, 9]
    found = repeats(text)
    assert found.bucket[0] == 0 and (found.earlier[:, 0] == -1).all()
    assert found.earlier[0, 4] == 0  # singly at first, so the token before is known
    assert found.earlier[:, 16].tolist() == [4, -1, -1, -1] and found.bucket[16] == 2  # 9 1
    assert found.earlier[:, 9].tolist() == [7, 3, -1, -1] and found.bucket[9] == 1  # 9, no more
    assert found.earlier[0, 18] == 2 and found.bucket[18] == 2  # 1 2 3
    assert found.earlier[1, 18] == -1  # of longer contexts the last one alone
    for start, end in blocks(24):
        assert (found.earlier[:, start:end] < start).all()


def test_what_is_equal_is_all_that_counts():
    text = [5, 7, 5, 5, 8, 7]
    assert anonymous(text) == [0, 1, 0, 0, 2, 1]
    one, two = repeats(text), repeats(anonymous(text))
    assert (one.earlier == two.earlier).all() and (one.bucket == two.bucket).all()


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 1023, 1024, 1025, 1100])
def test_blocks_cover_all_tokens(tokens):
    found = blocks(tokens)
    assert [t for start, end in found for t in range(start, end)] == list(range(tokens))


def test_golden_bytes():
    """A stream written anywhere is this one."""
    codes = (np.arange(60).reshape(3, 20) * 7919 % 61 - 30).astype(np.int32)
    fit = Adaptive(codes, repeats([t % 6 for t in range(20)]))
    assert fit.payload(codes).hex() == GOLDEN


GOLDEN = (
    "46e30100e9215588aea898b4b7c95b857b3e06176d4b1ba658100f06ef169981425ce1759dd2159131d83e5b"
    "e2863130f04ab707be3792ecef0a5a1a"
)


def test_damaged_streams_are_refused_or_harmless():
    rng = np.random.default_rng(5)
    codes = np.rint(rng.normal(size=(12, 40)) * 50).astype(np.int32)
    found = repeats([t % 9 for t in range(40)])
    data = bytearray(encode_wide(codes, Adaptive(codes, found)))
    assert (decode_wide(bytes(data), 12, found) == codes).all()
    for place in range(len(data)):
        for value in (0, 1, 255, data[place] ^ 16):
            changed = bytearray(data)
            changed[place] = value
            try:
                back = decode_wide(bytes(changed), 12, found)
            except InputError:
                continue
            assert back.shape == (12, 40)
    for cut in range(len(data)):
        with pytest.raises(InputError):
            decode_wide(bytes(data[:cut]), 12, found)
    with pytest.raises(InputError, match="other codes"):
        decode_wide(bytes(data), 12, nothing(39))
    with pytest.raises(InputError):
        decode(bytes(data))

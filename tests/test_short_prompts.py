"""What few tokens do not tell: savings by free tables, and from when on tables pay."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import log

import numpy as np
import pytest

from cachegen_cli import analyze, from_json, load_model, render, sweep, to_json
from cachegen_cli.coding.choosing import FEW_TOKENS, choose
from cachegen_cli.report.analyses import analysis_view
from cachegen_cli.results.measurements import over_texts

TEXT = "It was a quiet night on the river; nobody saw the boats go by, and nobody heard them. "


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def by_tokens(model):
    return {n: analyze(model, (TEXT * 4)[:n]) for n in (1, 3, 40, 64, 300)}


def drawn(kind: str, channels: int, bits: int, seed: int) -> np.ndarray:
    """Random codes [channels, 1024] that a table shortens, or that none does."""
    rng = np.random.default_rng(seed)
    top = 2**bits - 1
    if kind == "uniform":
        return rng.integers(0, top + 1, (channels, 1024)).astype(np.uint8)
    x = rng.normal(top / 2, {"narrow": top / 6, "wide": top / 3.5}[kind], (channels, 1024))
    return np.clip(np.rint(x), 0, top).astype(np.uint8)


@pytest.mark.parametrize("channels", [8, 16, 32])
@pytest.mark.parametrize(("kind", "bits"), [("narrow", 2), ("narrow", 4), ("wide", 4), ("wide", 3)])
def test_tables_pay_where_it_was_told_within_a_factor_of_2(kind, bits, channels):
    for seed in range(4):
        codes = drawn(kind, channels, bits, seed)
        choices = {n: choose(codes[:, :n].copy(), bits) for n in range(8, 1025, 8)}
        pays = 8 + max(
            (n for n, choice in choices.items() if choice.fit.name == "plain"), default=0
        )
        told = {n: c.tokens_to_pay for n, c in choices.items() if c.tokens_to_pay is not None}
        assert all(n >= FEW_TOKENS and choices[n].fit.name == "plain" for n in told)
        assert all(pays / 2 <= tokens <= 2 * pays for tokens in told.values()), (pays, told)
        if pays > 2 * FEW_TOKENS:
            assert told


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_where_tables_never_pay_no_number_of_tokens_is_told(bits):
    told = [choose(drawn("uniform", 32, bits, seed)[:, :96].copy(), bits) for seed in range(60)]
    assert all(choice.fit.name == "plain" for choice in told)
    assert sum(choice.tokens_to_pay is not None for choice in told) <= 1


def warned(found, code: str) -> str:
    return " ".join(n.message for n in found.run.warnings if n.code == code)


def test_what_is_told_of_tables_depends_on_the_tokens(by_tokens):
    for n in (1, 3, 40):
        said = warned(by_tokens[n], "tables-do-not-pay")
        assert f"with {n} token" in said and "so few do not tell from how many on" in said
        assert all(t.tokens_to_pay is None for t in by_tokens[n].measurement.tensors)
    said = warned(by_tokens[64], "tables-do-not-pay")
    assert re.search(r"from about \d+ tokens on they would, within a factor of 2", said)
    assert not warned(by_tokens[300], "tables-do-not-pay")


def test_a_group_that_is_not_full_tells_nothing(model):
    found = analyze(model, (TEXT * 4)[:100], group_size=128)
    assert all(tensor.tokens_to_pay is None for tensor in found.measurement.tensors)


def test_full_windows_never_have_more_tokens(sliding):
    found = analyze(str(sliding), TEXT * 3)
    full = [row for row in found.measurement.layers if row.tokens < row.tokens_seen]
    assert full and all(t.symbol_model == "plain" for row in full for t in (row.keys, row.values))
    assert not warned(found, "tables-do-not-pay")


def test_a_saving_that_free_tables_may_explain_is_not_shown(by_tokens):
    for n, found in by_tokens.items():
        measured = found.measurement
        for size in (*measured.tensors, *(row.total for row in measured.layers), measured.totals):
            # 15 / (2 ln 2) bits for each channel of 16 symbols, and no more than its codes
            bias = (size.elements // n) * min(15 / (2 * log(2)), 4 * n)
            assert size.entropy_bias_bits == pytest.approx(bias, abs=1)
            seems = 8 * (size.fixed_bytes - size.entropy_bytes)
            assert seems > 0 and (size.entropy_saving is None) == (seems <= size.entropy_bias_bits)
            assert size.coded_saving == 1 - size.coded_bytes / size.fixed_bytes  # that is real
        assert from_json(to_json(found)) == found
    assert by_tokens[1].measurement.totals.entropy_saving is None
    assert by_tokens[3].measurement.totals.entropy_saving is None
    assert by_tokens[300].measurement.totals.entropy_saving > 0
    held = json.loads(to_json(by_tokens[1]))["totals"]
    assert held["entropy_saving"] is None and held["entropy_bytes"] > 0
    [*_, total] = analysis_view(by_tokens[1], False).totals
    cells = analysis_view(by_tokens[1], False).cells(total)
    assert cells[4] == "-" and cells[6].endswith(" %")
    assert "as much as it seems to save, so its saving is not shown" in warned(
        by_tokens[1], "short-prompt"
    )
    assert "is not shown where it is no more than that" in warned(by_tokens[40], "short-prompt")


@pytest.mark.parametrize(
    "settings",
    [
        {"pooled": True}, {"delta": "on"}, {"scheme": "exact"}, {"scheme": "uniform"},
        {"bits": 8, "keep_first": 1},
    ],
)  # fmt: skip
def test_one_token_saves_nothing_by_entropy(model, settings):
    found = analyze(model, "a", **settings)
    totals = found.measurement.totals
    kept = settings.get("keep_first")
    assert totals.entropy_saving == (0 if kept else None)
    assert found.measurement.totals.coded_saving is not None


def test_codes_of_any_size_are_biased_by_what_their_channels_use(model):
    found = analyze(model, (TEXT * 4)[:300], scheme="uniform")
    assert 0 < found.measurement.totals.entropy_bias_bits < 300 * 256 * 0.2
    assert found.measurement.totals.entropy_saving > 0


def test_over_texts_and_settings_biases_are_sums(model, by_tokens):
    one, other = by_tokens[64], by_tokens[300]
    both = over_texts(
        [r.measurement for r in (one, other)], [r.run.prompt for r in (one, other)], None
    )
    bias = [r.measurement.totals.entropy_bias_bits for r in (one, other)]
    assert both.totals.entropy_bias_bits == pytest.approx(sum(bias))
    swept = sweep(model, "abc", bits=(2, 4))
    assert [row.totals.entropy_saving for row in swept.rows] == [None, None]
    assert render(swept, "table")
    old = replace(one.measurement.tensors[0], entropy_bias_bits=None)  # of earlier versions
    assert old.entropy_saving == 1 - old.entropy_bytes / old.fixed_bytes

"""What people read: counts with their nouns, and notes on the columns that a table shows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cachegen_cli import (
    analyze,
    capture,
    compare,
    load_model,
    pack,
    plan,
    render,
    sensitivity,
    sweep,
    verify,
)
from cachegen_cli.insights import insights
from cachegen_cli.report.differences import differences
from cachegen_cli.report.table import Column, View
from cachegen_cli.report.texttable import table_lines
from cachegen_cli.report.views import view
from cachegen_cli.results.analyses import QualityAnalysis
from cachegen_cli.results.cachefile import CacheEntry, PromptCacheFile
from cachegen_cli.results.files import PackedFiles
from cachegen_cli.results.models import ModelList, ModelRow
from cachegen_cli.results.profile import CalibratedUnit, Calibration, ProfileInfo
from cachegen_cli.wording import counted, plural

ONE_OF_MANY = re.compile(
    r"(?<![\d,.])1 (?:[A-Za-z-]+ )?(?:bits|bytes|channels|columns|copies|entries|figures|files"
    r"|heads|layers|positions|readings|results|rows|settings|tensors|texts|times|tokens|ids)\b"
)


def test_counts():
    assert [counted(n, "token") for n in (0, 1, 2, 1024)] == [
        "0 tokens", "1 token", "2 tokens", "1,024 tokens",
    ]  # fmt: skip
    assert counted(1, "cache entry") == "1 cache entry" and plural("cache entry") == "cache entries"


def of_every_kind(model, text, read_on, widths, folder):
    """A result of every kind, of one text."""
    one, scored = capture(model, text), capture(model, read_on, continuation=len(read_on) // 2)
    info = ProfileInfo("p", "", 1, "m", 1, 1)
    entry = CacheEntry(0, "KVCache", (1, 2, 9, 16), (1, 2, 9, 16), "F16", 9, 9, 9, 576, 576)
    packed, graded = pack(one, folder / f"{len(text)}.cgkv"), analyze(scored, quality=True)
    return [
        analyze(one), graded, QualityAnalysis(graded.run, graded.measurement),
        sweep(one, bits=widths), sweep(scored, bits=widths, quality=True),
        sensitivity(scored), compare(scored, schemes=("group", "uniform")),
        plan(scored, target_bits=99, choices=widths), insights(scored, with_sensitivity=False),
        verify(one), packed, PackedFiles("pack", (packed,)),
        ModelList({}, (ModelRow("a", "hub", 1, 1, 1, 1, 1, 1, 1, 1),)),
        PromptCacheFile("inspect", "c", "C", 1, {}, 1, (entry,)),
        Calibration(graded.run, info, (CalibratedUnit((0,), "keys", 1, 1, 0.9, (1.0,)),)),
        differences([analyze(one), analyze(one, bits=3)], ["a", "b"], 0),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def results(llama, tmp_path_factory):
    """Results of as little as there can be, and of more."""
    model, folder = load_model(str(llama)), tmp_path_factory.mktemp("results")
    more = "It was a quiet night. " * 6
    return [
        *of_every_kind(model, "a", "abcd", (1,), folder),
        *of_every_kind(model, more, more, (2, 4), folder),
    ]


def test_one_of_a_thing_is_no_plural(results):
    for one in results:
        for wide in (False, True):
            full = view(one, wide)
            for text in (full.title, *full.notes, *full.legend()):
                assert not ONE_OF_MANY.findall(text), (one.kind, text)
        run = getattr(one, "run", None)
        for message in run.messages if run else ():
            assert not ONE_OF_MANY.findall(message)
        page = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", render(one, "html"), flags=re.S)
        assert not ONE_OF_MANY.findall(page), (one.kind, ONE_OF_MANY.findall(page))


def terms(sentence: str) -> list[str]:
    """The headers that a sentence at the foot explains: "a, b: ..."."""
    return [term.strip() for term in sentence.split(":")[0].split(",")]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("wide", [False, True])
def test_notes_explain_the_columns_that_are_shown(results, width, wide):
    for one in results:
        full = view(one, wide)
        _, dropped = table_lines(full, width, color=False, fit=True, drop=not wide)
        shown = [column for column in full.columns if column not in dropped]
        text = " ".join(render(one, "table", wide=wide, width=width, fit=True).split())
        for column in full.columns:
            elsewhere = any(column.about == other.about for other in shown)
            assert (column.about in text) == (elsewhere or not column.about), (one.kind, column)
        every = " ".join(render(one, "markdown", wide=wide).split())
        assert all(column.about in every for column in full.columns)
        for note in full.notes:  # what is said anyway explains no column
            for column in full.columns:
                if column.header and column.about:
                    assert not re.search(rf"(^|\. ){re.escape(column.header)}: ", note)
    page = render(results[0], "html")
    assert "rms error: relative" in page


def test_what_is_explained_is_a_header(results):
    said = {"raw or delta", "chan or pool", "KL", "*", "weights", "k = 1"}
    for one in results:
        for wide in (False, True):
            columns = view(one, wide).columns
            headers = {column.header for column in columns} | said
            assert all(terms(column.about)[0] in headers for column in columns if column.about)


def test_a_legend_is_one_note_in_the_order_of_the_columns():
    abouts = {"a": "a: one.", "b": "", "c": "a: one.", "d": "d: two."}
    columns = [Column(key, key, about=about) for key, about in abouts.items()]
    shown = View("", columns, [])
    assert shown.legend() == ["a: one. d: two."]
    assert shown.legend(columns[:1]) == ["a: one. d: two."]
    assert shown.legend(columns[::2]) == ["d: two."]
    assert replace(shown, columns=columns[1:2]).legend() == []

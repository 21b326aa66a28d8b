"""The command behind the maths of `locality`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachegen_cli import (
    UsageError,
    capture,
    capture_texts,
    from_json,
    render,
    sensitivity,
    to_json,
)
from cachegen_cli.insights import insights
from cachegen_cli.results import insights as names

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2


@pytest.fixture(scope="module")
def scored(llama):
    return capture(str(llama), TEXT, continuation=40)


@pytest.fixture(scope="module")
def found(scored):
    return insights(scored)


def test_what_is_measured(found, scored):
    for name in names.TENSORS:
        assert found.of(names.CONSECUTIVE, name) > 0 and found.of(names.ANCHOR, name) > 0
        assert found.of("autocorrelation at lag 1", name) is not None
        for design in (names.ANCHORS, names.RAW, names.DPCM):
            assert found.of(design, name) > 0
    assert found.of(names.BY_CHANNEL, "both") < found.of(names.POOLED, "both")
    assert found.of(names.SHIPPED, "both") == 8 * 66 / len(scored.tokens)
    assert found.of(names.DEPTH, "both") == sensitivity(scored).depth_correlation
    nulls = {(f.observation, f.tensor): f.null for f in found.findings}
    for name in names.TENSORS:
        assert nulls[names.CONSECUTIVE, name] == pytest.approx(0.5, abs=0.05)
        assert abs(nulls["autocorrelation at lag 1", name]) < 0.05
    assert nulls[names.BY_CHANNEL, "both"] > found.of(names.BY_CHANNEL, "both")
    assert nulls[names.IN_OBJECTS, "both"] > found.of(names.IN_OBJECTS, "both")
    # a control that is the figure itself is none
    assert all(null != found.of(*key) for key, null in nulls.items() if null is not None)
    for name in (names.POOLED, names.BY_LAYER, names.SHIPPED, names.MDL, names.DEPTH):
        assert nulls[name, "both"] is None


def test_without_sensitivity(scored, found):
    less = insights(scored, with_sensitivity=False)
    assert "analysis_seconds" not in less.run.timing
    assert less.of(names.DEPTH, "both") is None
    assert [f for f in found.findings if f.observation not in (names.DEPTH, names.NEEDED)] == [
        *less.findings
    ]


def test_without_sensitivity_nothing_is_held_back(llama, cachegen, quick):
    text = (TEXT * 4)[:500]
    found = insights(str(llama), text, with_sensitivity=False)
    assert (found.run.prompt.tokens, found.run.prompt.continuation_tokens) == (500, 0)
    assert found.of(names.SHIPPED, "both") == pytest.approx(2 * 66 * 8 / 500)  # two objects
    cut = insights(str(llama), text, with_sensitivity=False, max_prompt_tokens=40)
    assert (cut.run.prompt.tokens, cut.run.prompt.continuation_tokens) == (40, 0)
    sample = insights(str(llama), with_sensitivity=False, max_prompt_tokens=300)
    assert sample.run.prompt.source == "sample long.txt" and sample.run.prompt.tokens == 300
    with pytest.raises(UsageError, match="read for the sensitivity alone"):
        insights(str(llama), text, with_sensitivity=False, continuation=20)
    done = cachegen("insights", *quick, "--no-sensitivity", "--continuation", 20)
    assert done.code == 2 and "for the sensitivity alone" in done.err


def test_windows_short_and_several_texts(sliding, llama):
    assert insights(str(sliding), TEXT, with_sensitivity=False).findings
    short = insights(str(llama), "abcd", with_sensitivity=False)
    assert short.of("autocorrelation at lag 100", "keys") is None
    assert from_json(to_json(short)) == short and render(short, "table")
    texts = list(capture_texts(str(llama), [TEXT, TEXT[::-1]], continuation=None))
    both = insights(texts, with_sensitivity=False)
    one = [insights(text, with_sensitivity=False) for text in texts]
    mean = sum(r.of(names.CONSECUTIVE, "keys") for r in one) / 2
    assert both.of(names.CONSECUTIVE, "keys") == pytest.approx(mean)
    assert len(both.run.prompts) == 2


def changed(found, observation, value, tensor="both"):
    findings = tuple(
        replace(f, measured=value) if (f.observation, f.tensor) == (observation, tensor) else f
        for f in found.findings
    )
    return replace(found, findings=findings)


def ratios(found, keys, values):
    return changed(
        changed(found, names.CONSECUTIVE, keys, "keys"), names.CONSECUTIVE, values, "values"
    )


def said(found) -> str:
    return " ".join(found.verdicts)


def test_verdicts_follow_the_figures(found):
    alike = changed(
        changed(found, names.CONSECUTIVE, 2.6, "keys"), names.CONSECUTIVE, 2.5, "values"
    )
    assert "are alike, as the paper says" in said(alike)
    only = ratios(found, 1.2, 0.6)
    assert "only in keys" in said(only)
    none = changed(only, names.CONSECUTIVE, 0.7, "keys")
    assert "no smaller than the values here" in said(none)
    assert "less than there" in said(changed(only, names.CONSECUTIVE, 1.1, "values"))
    enough = changed(found, names.NEEDED, 0.3)
    assert "Deep layers are more sensitive, the reverse" in said(changed(enough, names.DEPTH, 0.6))
    assert "Shallow layers are more sensitive, as" in said(changed(enough, names.DEPTH, -0.6))
    assert "do not hang together" in said(changed(enough, names.DEPTH, 0.1))
    dear = changed(changed(found, names.BY_CHANNEL, 2.1), names.POOLED, 2.5)
    dear = changed(dear, names.IN_OBJECTS, 2.0)
    assert "more than the 0.50" in said(changed(dear, names.SHIPPED, 1.0))
    assert "less than the 0.50" in said(changed(dear, names.SHIPPED, 0.2))
    assert "and save nothing" in said(changed(dear, names.IN_OBJECTS, 2.6))
    assert "(16% less; paper up to 53 %)" in said(dear)
    assert "(4% more; paper up to 53 %)" in said(changed(dear, names.BY_CHANNEL, 2.6))
    assert "does not hold" in said(changed(dear, names.BY_TOKEN, 1.5))


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
def test_formats(found, format):
    text = render(found, format)
    assert from_json(to_json(found)) == found
    if format == "table":
        assert max(map(len, text.splitlines())) <= 80
        assert "by chance" in text


def test_the_command(cachegen, quick):
    done = cachegen("insights", *quick, "--no-sensitivity", "--json")
    assert done.code == 0 and '"kind": "insights"' in done.out

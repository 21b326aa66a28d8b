from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny import LLAMA, make_model

from cachegen_cli import UsageError, analyze, capture, compare, from_json, render, to_json
from cachegen_cli.options.types import Names
from cachegen_cli.results.planning import Target

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A tiny model whose head_dim MLX can quantize in groups of 32 alone."""
    folder = make_model(tmp_path_factory.mktemp("wider") / "m", LLAMA | {"head_dim": 32})
    return capture(str(folder), TEXT, continuation=40)


@pytest.fixture(scope="module")
def found(scored):
    return compare(scored)


def test_points_are_measured_and_the_baseline_is_mlx(found, scored):
    assert found.schemes == ["group", "mlx", "cachegen", "uniform", "exact"]
    for point in found.points:
        text = point.settings.scheme_text
        bits = point.settings.key_bits or None
        alone = analyze(scored, scheme=text, bits=bits, quality=True).measurement
        assert (point.coded_bytes, point.quality) == (alone.totals.coded_bytes, alone.quality)
    [mlx] = [p for p in found.points if p.name == "mlx:group_size=32 4"]
    assert found.target == Target("kl_nats", mlx.quality.kl_nats)
    assert found.mlx_bits_per_element == 5  # 4 bits, and a scale and a bias of 16 for 32
    [standing] = [s for s in found.standings if s.scheme == "mlx"]
    assert standing.coded_bits_per_element == pytest.approx(mlx.coded_bits_per_element)
    assert not standing.extrapolated
    assert "exact" not in [s.scheme for s in found.standings]


def curve(found, scheme, points):
    """The comparison with one scheme's points replaced by (bits, KL, its error)."""
    [one, *_] = [p for p in found.points if p.settings.scheme == scheme]
    rest = [p for p in found.points if p.settings.scheme != scheme]
    made = [
        replace(one, coded_bits_per_element=bits,
                quality=replace(one.quality, kl_nats=kl, kl_nats_stderr=error))
        for bits, kl, error in points
    ]  # fmt: skip
    return replace(found, points=(*rest, *made))


def standing(found, scheme):
    return next(s for s in found.standings if s.scheme == scheme)


def test_curves_are_straight_in_bits_against_log_kl(found):
    at = replace(found, target=Target("kl_nats", 0.01))
    made = curve(at, "uniform", [(2, 0.1, 0.01), (4, 0.001, 0.0001), (6, 1e-5, 1e-6)])
    one = standing(made, "uniform")
    assert one.coded_bits_per_element == pytest.approx(3) and not one.extrapolated
    assert one.stderr == pytest.approx(0.1 * 2 / math.log(100))
    assert made.bytes_at(one) == round(3 / 16 * made.raw_bytes)
    beyond = standing(replace(made, target=Target("kl_nats", 1.0)), "uniform")
    assert beyond.extrapolated and beyond.coded_bits_per_element == pytest.approx(1)
    sized = standing(replace(made, target=Target("coded_bits_per_element", 3.0)), "uniform")
    assert sized.kl_nats == pytest.approx(0.01) and sized.stderr == pytest.approx(0.001)


def test_a_winner_only_where_intervals_do_not_overlap(found):
    at = replace(found, target=Target("kl_nats", 0.01))
    for scheme, low in (("group", 5), ("mlx", 4), ("cachegen", 4)):
        at = curve(at, scheme, [(low - 1, 0.1, 0.001), (low + 1, 0.001, 1e-5)])
    clear = curve(at, "uniform", [(2, 0.1, 0.001), (4, 0.001, 1e-5)])
    assert clear.winner == "uniform"
    assert "uniform is smallest: 3.00 bits" in render(clear, "table", width=500)
    noisy = curve(at, "uniform", [(2, 0.1, 0.2), (4, 0.001, 2e-3)])
    close = curve(at, "uniform", [(2.99, 0.1, 0.001), (4.99, 0.001, 1e-5)])
    outside = curve(at, "uniform", [(1, 1.0, 0.01), (2, 0.1, 0.001)])
    for other in (noisy, close, outside):
        assert other.winner is None
        assert "no scheme is the winner" in render(other, "table", width=500)
    sized = replace(clear, target=Target("coded_bits_per_element", 3.0))
    assert sized.winner == "uniform"
    assert "uniform loses least" in render(sized, "table", width=500)


def test_where_mlx_cannot_take_the_head_size(llama):
    found = compare(str(llama), TEXT, schemes=("mlx", "group"), continuation=40)
    assert found.schemes == ["group"] and found.mlx_bits_per_element is None
    assert "scheme-left-out" in [w.code for w in found.run.warnings]
    assert render(found, "table") and from_json(to_json(found)) == found


@pytest.mark.parametrize(
    "arguments",
    [{"at_kl": 1, "at_bits": 2}, {"at_kl": 0}, {"at_bits": float("nan")}, {"schemes": ()},
     {"schemes": ("poem",)}, {"schemes": ("uniform:error=0.1",)},
     {"schemes": ("cachegen:bins=9",)}],
)  # fmt: skip
def test_impossible_arguments(arguments):
    with pytest.raises(UsageError):
        compare("never loaded", **arguments)


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
def test_formats(found, format):
    text = render(found, format)
    if format == "table":
        assert max(map(len, text.splitlines())) <= 80
        assert "│" in render(found, "table", wide=True)
    assert from_json(to_json(found)) == found


def test_the_command(cachegen, quick):
    done = cachegen("compare", *quick, "--schemes", "group,uniform", "--at-bits", "4")
    assert done.code == 0 and "At 4 coded bits an element" in done.out
    assert Names.parse("a,b:x=1,y=2, c") == ("a", "b:x=1,y=2", "c")

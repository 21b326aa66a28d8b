from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny import LLAMA, make_model

from cachegen_cli import UsageError, analyze, capture, compare, from_json, render, to_json
from cachegen_cli.comparing import ranked
from cachegen_cli.curves import Aim
from cachegen_cli.options.types import Names
from cachegen_cli.results.candidates import Target
from cachegen_cli.results.comparison import Standing

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A tiny model whose head_dim MLX can quantize in groups of 32 alone."""
    folder = make_model(tmp_path_factory.mktemp("wider") / "m", LLAMA | {"head_dim": 32})
    return capture(str(folder), TEXT, continuation=40)


@pytest.fixture(scope="module")
def found(scored):
    return compare(scored)


def alone(scored, point):
    """What a setting gives by itself, through the library."""
    settings = point.settings
    bits = (
        {"key_bits": settings.key_bits, "value_bits": settings.value_bits}
        if settings.key_bits
        else {}
    )
    return analyze(scored, scheme=settings.scheme_text, **bits, quality=True).measurement


def test_every_point_is_what_its_setting_gives_by_itself(found, scored):
    assert found.schemes == ["group", "mlx", "cachegen", "uniform", "exact"]
    for point in found.points:
        measured = alone(scored, point)
        assert (point.coded_bytes, point.quality) == (measured.totals.coded_bytes, measured.quality)
    assert len({point.name for point in found.points}) == len(found.points)


def test_the_target_is_the_kl_of_mlx_which_has_no_error(found):
    mlx = next(p for p in found.points if p.name == found.target_setting)
    assert mlx.settings.scheme == "mlx" and mlx.settings.key_bits == mlx.settings.value_bits == 4
    assert found.target == Target("kl_nats", mlx.quality.kl_nats)
    assert found.mlx_bits_per_element == 5  # 4 bits, and a scale and a bias of 16 for 32
    [standing] = [s for s in found.standings if s.scheme.startswith("mlx")]
    assert standing.coded_bits_per_element == mlx.coded_bits_per_element
    assert standing.margin == 0 and standing.nearest == mlx.name
    assert "exact" not in [s.scheme for s in found.standings]


def test_schemes_are_measured_at_the_target(found, scored):
    """Two settings that are near it, or neighbours; what is read off lies between their bits."""
    kl = {p.name: p.quality.kl_nats for p in found.points}
    bits = {p.name: p.coded_bits_per_element for p in found.points}
    for standing in found.standings:
        around = [kl[name] for name in standing.read_from]
        low, *_, high = sorted(bits[name] for name in standing.read_from) * 2
        assert min(around) <= found.target.value * (1 + 1e-9) and max(around) >= found.target.value
        assert low <= standing.coded_bits_per_element <= max(high, low)
        assert found.nearest(standing).name in standing.read_from
        if standing.scheme == "uniform":
            above = min(kl for kl in around if kl >= found.target.value)
            below = max(kl for kl in around if kl <= found.target.value)
            assert above < 1.1 * found.target.value and below > 0.9 * found.target.value
    # the command that is named gives the same, to the digit
    nearest = found.nearest(standing)
    assert nearest.settings.arguments.startswith(f"--scheme {nearest.settings.scheme_text}")


def test_the_command_that_a_row_names_gives_the_same(cachegen, quick):
    done = cachegen("compare", *quick, "--schemes", "group,cachegen,uniform", "--json",
                    "--at-kl", "0.005")  # fmt: skip
    compared = json.loads(done.out)
    points = {point["name"]: point for point in compared["points"]}
    assert len(compared["standings"]) == 3
    for standing in compared["standings"]:
        point = points[standing["nearest"]]
        again = json.loads(cachegen("quality", *quick, *point["arguments"].split(), "--json").out)
        assert again["totals"]["coded_bytes"] == point["coded_bytes"]
        assert again["totals"]["coded_bits_per_element"] == point["coded_bits_per_element"]
        assert again["quality"] == point["quality"]


def stood(bits, beats=(), scheme="uniform", **more):
    figures = {"low": bits - 0.1, "high": bits + 0.1, "nearest": "mlx:group_size=32 4",
               "read_from": ("mlx:group_size=32 4",)}  # fmt: skip
    return Standing(scheme, bits, 0.01, **figures | more, beats=beats)


def test_a_winner_beats_every_other(found):
    at = replace(found, target=Target("kl_nats", 0.01), target_setting="")
    ranked = (stood(3, ("mlx", "group")), stood(4, ("group",), "mlx"), stood(5, (), "group"))
    clear = replace(at, standings=ranked)
    assert clear.winner == "uniform"
    assert "uniform is smallest: 3.00 bits an element, 25.0 % less than mlx" in render(
        clear, "table", width=500
    )
    close = replace(at, standings=(stood(3, ("group",)), *ranked[1:]))
    assert close.winner is None
    assert "uniform comes first, but not beyond the error before mlx." in render(
        close, "table", width=500
    )
    sized = replace(clear, target=Target("coded_bits_per_element", 3.0))
    assert "uniform loses least" in render(sized, "table", width=500)
    assert replace(at, standings=ranked[:1]).winner is None


def test_who_beats_whom_is_paired():
    """Readings that move together are told apart by less than either's own error."""
    random = np.random.default_rng(0)
    shared = random.standard_normal(2000)
    read = [
        (stood(3.0), 3.0 + shared),
        (stood(3.2, scheme="mlx"), 3.2 + shared + 0.05 * random.standard_normal(2000)),
        (stood(3.3, scheme="group"), 3.3 + random.standard_normal(2000)),
    ]
    aim = Aim(Target("kl_nats", 0.01))
    assert [one.beats for one in ranked(read, aim)] == [("mlx",), (), ()]
    assert ranked([(read[0][0], None), (read[1][0], None)], aim)[0].beats == ()


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


def test_schemes_by_other_names(scored):
    """A scheme with the options that it has anyway is measured once, and said to be the same."""
    found = compare(scored, schemes=("mlx:group_size=32", "mlx", "group"))
    assert [one.scheme for one in found.standings if "mlx" in one.scheme] == ["mlx:group_size=32"]
    assert "scheme-named-twice" in [w.code for w in found.run.warnings]
    alone = compare(scored, schemes=("mlx:group_size=32",))
    assert [one.scheme for one in alone.standings] == ["mlx:group_size=32"]
    assert render(alone, "table")


def test_two_positions_make_no_winner(llama):
    found = compare(str(llama), TEXT, schemes=("group", "uniform"), continuation=2)
    assert found.winner is None and all(one.margin is None for one in found.standings)
    assert "few-positions" in [w.code for w in found.run.warnings]

"""Settings hold what is really used, whichever way it was given."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tiny import LLAMA, make_model

from cachegen_cli import (
    UsageError,
    analyze,
    capture,
    from_json,
    inspect,
    load_model,
    pack,
    plan,
    render,
    sensitivity,
    sweep,
    to_json,
    verify,
)
from cachegen_cli.results.settings import GROUPS, PlannedWidths, Settings
from cachegen_cli.schedules import check, settings_of
from cachegen_cli.schemes import SCHEMES

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2
HEADS, DIM = 2, 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model that MLX can quantize in groups of any size that it has."""
    return make_model(tmp_path_factory.mktemp("wide") / "m", LLAMA | {"head_dim": DIM})


@pytest.fixture(scope="module")
def scored(folder):
    return capture(str(folder), TEXT, continuation=40)


def mlx_bytes(bits: int, group_size: int, tokens: int) -> int:
    """Of 4 layers' keys and values: codes, and a scale and a bias of 16 bits a group."""
    return 4 * 2 * HEADS * tokens * (DIM * bits // 8 + DIM // group_size * 4)


@pytest.mark.parametrize(
    ("scheme", "group_size", "used", "typed"),
    [
        ("group", None, 32, "group"),
        ("group", 7, 7, "group:group_size=7"),
        ("group:group_size=7", None, 7, "group:group_size=7"),
        ("group:group_size=7", 7, 7, "group:group_size=7"),
        ("mlx", None, 64, "mlx"),
        ("mlx", 64, 64, "mlx"),
        ("mlx", 32, 32, "mlx:group_size=32"),
        ("mlx:group_size=128", None, 128, "mlx:group_size=128"),
        ("mlx:group_size=32", 32, 32, "mlx:group_size=32"),
        ("cachegen", None, 0, "cachegen"),
        ("uniform:error=0.1", None, 0, "uniform:error=0.1"),
        ("exact", None, 0, "exact"),
    ],
)
def test_the_group_size_is_what_is_used(scheme, group_size, used, typed):
    settings = settings_of(scheme, group_size=group_size)
    check(settings)
    assert (settings.group_size, settings.scheme_text) == (used, typed)
    again = settings_of(settings.scheme_text)
    assert again.group_size == used and again.label == settings.label
    assert (settings.key_bits, settings.value_bits) == ((4, 4) if used else (0, 0))
    assert (f"groups of {used}" in settings.label) == bool(used)


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        ({"scheme": "mlx", "group_size": 33}, "no groups of 33", "32, 64, 128"),
        ({"scheme": "mlx:group_size=16"}, "no groups of 16", "32, 64, 128"),
        ({"scheme": "mlx:group_size=32", "group_size": 64}, "groups of 64 and of 32", "not both"),
        ({"scheme": "group:group_size=8", "group_size": 32}, "groups of 32 and of 8", "not both"),
        ({"scheme": "uniform", "group_size": 7}, "uniform has no groups", "--group-size"),
        ({"scheme": "exact", "group_size": 32}, "exact has no groups", "it takes none"),
        ({"scheme": "cachegen", "bits": 4}, "no code width", "bins=N"),
        ({"scheme": "uniform", "value_bits": 3}, "no code width", "error=N"),
        ({"scheme": "exact", "schedule": "depth"}, "no code widths to schedule", "--schedule"),
        ({"bits": 3, "key_bits": 4, "value_bits": 5}, "no use beside", "leave it out"),
        ({"group_size": 0}, "0 is not a group size", "1 or more"),
        ({"scheme": "uniform", "delta": "on"}, "codes no token deltas", "--delta"),
        ({"scheme": "stored"}, "not a scheme", "group, mlx"),
    ],
)
def test_what_would_have_no_effect_is_refused(captured, arguments, words, hint):
    with pytest.raises(UsageError, match=words) as refused:
        analyze(captured, **arguments)
    assert hint in refused.value.hint
    if "bits" not in arguments and "value_bits" not in arguments:
        sizes = arguments.get("group_size")
        given = arguments | {"group_sizes": None if sizes is None else (sizes,)}
        given.pop("group_size", None)
        with pytest.raises(UsageError, match=words):
            sweep(captured, **given)


def test_settings_made_by_hand_are_refused_alike(captured, tmp_path):
    plain = PlannedWidths("", "", (4,) * 4, (4,) * 4)
    for settings in (
        Settings(scheme="uniform", group_size=8),
        Settings(4, 4, scheme="exact"),
        Settings(scheme="exact", schedule="depth"),
        Settings(scheme="cachegen", plan=plain),
        Settings(scheme="poem"),
        Settings(scheme="mlx", plan=PlannedWidths("", "", (4, 7, 4, 4), (4,) * 4)),
    ):
        for work in (
            lambda s: verify(captured, settings=s),
            lambda s: pack(captured, tmp_path / "c.cgkv", s),
            lambda s: sensitivity(captured, settings=s),
        ):
            with pytest.raises(UsageError):
                work(settings)
    for settings in (Settings(scheme="mlx"), Settings(scheme="group")):
        with pytest.raises(UsageError, match=r"7-bit|9 is not"):
            plan("never loaded", target_bits=4, settings=settings, choices=(2, 7, 9))


def test_schemes_with_groups_are_those_with_widths():
    assert {name for name, scheme in SCHEMES.items() if scheme.has_bits} == set(GROUPS)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_mlx_takes_the_option_as_its_own(scored, size):
    one = analyze(scored, scheme="mlx", group_size=size).measurement
    other = analyze(scored, scheme=f"mlx:group_size={size}").measurement
    tokens = scored.prompt.tokens
    assert one.totals == other.totals and one.settings.group_size == size
    assert one.totals.fixed_bytes == mlx_bytes(4, size, tokens)
    usual = analyze(scored, scheme="mlx").measurement
    assert (one == usual) == (size == 64)


def test_a_sweep_over_group_sizes_of_mlx(scored):
    found = sweep(scored, scheme="mlx", bits=(2, 4), group_sizes=(32, 64, 128))
    rows = [(row.settings.key_bits, row.settings.group_size) for row in found.rows]
    assert rows == [(bits, size) for size in (32, 64, 128) for bits in (2, 4)]
    for row in found.rows:
        size = mlx_bytes(row.settings.key_bits, row.settings.group_size, scored.prompt.tokens)
        assert row.totals.fixed_bytes == size
    told = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert [(int(row["key_bits"]), int(row["group_size"])) for row in told] == rows
    assert "bits  group" in render(found, "table")
    assert [row.settings.group_size for row in sweep(scored, scheme="mlx").rows] == [64] * 4


def test_every_report_shows_the_group_size(cachegen, folder, tmp_path):
    given = ("--model", folder, "--prompt", TEXT, "--scheme", "mlx", "--group-size", "32")
    title = "mlx, K4 V4, groups of 32"
    for command in ("analyze", "quality", "verify", "sensitivity"):
        assert title in " ".join(cachegen(command, *given).out.split())
        told = json.loads(cachegen(command, *given, "--json").out)["settings"]
        assert (told["scheme"], told["group_size"], told["options"]) == ("mlx", 32, {})
    page = cachegen("analyze", *given, "-f", "html").out
    assert title in page and "<dt>settings.group_size</dt><dd>32</dd>" in page
    file = tmp_path / "c.cgkv"
    assert title in " ".join(cachegen("pack", *given, "-o", file).out.split())
    assert inspect(file).measurement.settings.group_size == 32


def test_a_plan_knows_the_group_size_that_it_was_made_with(scored, tmp_path):
    found = plan(scored, target_bits=5, choices=(2, 4), settings=Settings(scheme="mlx"))
    assert found.widths("").group_size == found.measurement.settings.plan.group_size == 64
    file = tmp_path / "p.json"
    file.write_text(to_json(found))

    def warned(**options):
        run = analyze(scored, scheme="mlx", schedule=file, **options).run
        return [w.message for w in run.warnings if w.code == "plan-for-other-settings"]

    assert not warned() and not warned(group_size=64)
    [message] = warned(group_size=32)
    assert "made with groups of 64" in message and "here it is 32" in message
    assert from_json(to_json(found)) == found


def test_a_continuation_asks_for_quality_in_python_too(llama):
    found = analyze(str(llama), TEXT, continuation=20)
    assert found.measurement.quality.positions == found.run.prompt.continuation_tokens == 20


def test_a_loaded_model_takes_no_adapters(llama):
    model = load_model(str(llama))
    for options in ({"adapter_path": "a"}, {"revision": "main"}):
        with pytest.raises(UsageError, match="takes no adapters and no revision"):
            capture(model, TEXT, **options)

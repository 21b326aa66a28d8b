"""Caches that are quantized already: what is said of them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import save_prompt_cache
from tiny import LLAMA, make_model

from cachegen_cli import (
    InputError,
    analyze,
    calibrate,
    capture_file,
    compare,
    from_json,
    load_model,
    plan,
    render,
    sensitivity,
    sweep,
    to_json,
    verify,
)
from cachegen_cli.prompt import Prompt
from cachegen_cli.reading import encode, prefill
from cachegen_cli.results.settings import Settings, StoredCodes

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. "
NEXT = "In the morning the ferryman found the rope cut and the far bank empty of people."
HEADS, DIM, ENTRIES = 2, 64, 4
ALL = r"all 4 cache entries are quantized already \(mlx 4 bits, groups of 64\)"
OWN = "the cache's own codes (mlx 4 bits, groups of 64)"
PART = "settings apply to 2 of 4 entries"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("wide") / "m", LLAMA | {"head_dim": DIM})


@pytest.fixture(scope="module")
def model(folder):
    return load_model(str(folder))


def write(path: Path, model, stored: int, dtype=mx.float16) -> Path:
    """A prompt cache as mlx-lm writes it, with so many entries that ``--kv-bits 4`` quantized."""
    cache = prefill(model, encode(model, Prompt(TEXT)))
    for entry in cache:
        entry.keys, entry.values = (x.astype(dtype) for x in (entry.keys, entry.values))
    cache[:stored] = [entry.to_quantized(64, 4) for entry in cache[:stored]]
    save_prompt_cache(str(path), cache, {"model": model.id})
    return path


@pytest.fixture(scope="module")
def files(model, tmp_path_factory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("caches")
    return {n: write(folder / f"{n}.safetensors", model, n) for n in (2, 4)}


@pytest.fixture(scope="module")
def whole(model, files):
    return capture_file(files[4], model, NEXT)


@pytest.fixture(scope="module")
def part(model, files):
    return capture_file(files[2], model, NEXT)


def codes_bytes() -> int:
    """Of an entry: 4 bits a value, and a scale and a bias of 16 bits for each 64 of them."""
    return 2 * HEADS * len(TEXT) * (DIM * 4 // 8 + 4)


def notice(result) -> str:
    [found] = [n.message for n in result.run.warnings if n.code == "already-quantized"]
    return found


COMMANDS = {
    "quality": ("quality", "--bits", "2", "--fail-if-kl-above", "0.001"),
    "mlx": ("quality", "--scheme", "mlx", "--bits", "2", "--fail-if-kl-above", "0.001"),
    "analyze": ("analyze", "--fail-if-kl-above", "0.001"),
    "check of a sweep": ("sweep", "--bits", "2", "--fail-if-kl-above", "0.001"),
    "sweep": ("sweep", "--quality"),
    "plan": ("plan", "--target-bits", "4"),
    "compare": ("compare",),
    "sensitivity": ("sensitivity", "--bits", "2"),
    "target": ("quality", "--scheme", "uniform:bits=3"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_would_be_of_nothing_is_refused(cachegen, folder, files, command):
    given = ("--prompt-cache-file", files[4], "--model", folder, "--prompt", NEXT)
    done = cachegen(*command, *given)
    assert done.code == 1 and done.out == "" and "PASS" not in done.err
    error, hint = done.err.splitlines()
    assert re.search(ALL, error) and "'cachegen analyze' shows" in hint


def test_what_would_be_of_nothing_is_refused_in_python(whole):
    for work in (
        lambda: sweep(whole, bits=(2, 4)),
        lambda: sweep(whole, quality=True),
        lambda: plan(whole, target_bits=4),
        lambda: compare(whole, schemes=("group", "mlx")),
        lambda: sensitivity(whole),
        lambda: analyze(whole, scheme="uniform:bits=3"),
        lambda: verify(whole, settings=Settings(scheme="uniform", options={"bits": 3.0})),
    ):
        with pytest.raises(InputError, match=ALL):
            work()


@pytest.mark.parametrize(
    "made",
    [
        lambda cache: analyze(cache, bits=2, keep_first=3, quality=True),
        lambda cache: analyze(cache, scheme="uniform"),
        lambda cache: sweep(cache, bits=(8,), quality=True),
        lambda cache: verify(cache, settings=Settings(2, 2)),
    ],
)
def test_settings_that_apply_to_nothing_are_not_told(whole, made):
    found = made(whole)
    assert "settings apply to 0 of 4 entries" in notice(found)
    rows = getattr(found, "rows", [getattr(found, "measurement", None)])
    measured = any(row.quality for row in rows if row)
    assert ("KL is against the cache as it is" in notice(found)) == measured
    assert from_json(to_json(found)) == found
    data = json.loads(to_json(found))
    told = data["rows"][0]["settings"] if "rows" in data else data["settings"]
    assert told["stored"] == {"codes": "mlx 4 bits, groups of 64", "entries": 4, "of": 4}
    assert told["scheme"] == "stored"
    assert (told["key_bits"], told["value_bits"], told["group_size"]) == (0, 0, 0)
    assert (told["keep_first"], told["options"], told["profile"]) == (0, {}, None)
    for format, wide in (("table", False), ("table", True), ("markdown", True), ("html", True)):
        text = render(found, format, wide=wide, width=1000).replace("&#x27;", "'")
        assert OWN in text and "K2 V2" not in text and "groups of 32" not in text


def test_quality_says_what_it_is_against(whole):
    found = analyze(whole, bits=2, quality=True)
    assert found.measurement.quality.kl_nats == 0
    assert found.measurement.totals.fixed_bytes == ENTRIES * codes_bytes()
    text = " ".join(render(found, "table").split())
    assert "KL is against the cache as it is, already quantized." in text
    assert "KL is against" not in render(analyze(whole), "table")


def test_a_check_of_coding_stays(cachegen, files):
    given = ("--prompt-cache-file", files[4], "--bits", "3")
    for command in ("analyze", "sweep"):
        done = cachegen(command, *given, "--fail-if-saving-below", "-90%")
        assert done.code == 0 and f"PASS {OWN}: saving" in done.err


@pytest.mark.parametrize("bits", [2, 8])
def test_of_a_part_it_is_said_of_how_much(part, bits):
    found = analyze(part, bits=bits, quality=True)
    settings = found.measurement.settings
    assert (settings.key_bits, settings.group_size) == (bits, 32)
    assert settings.stored == StoredCodes("mlx 4 bits, groups of 64", 2, 4)
    assert PART in notice(found)
    first, _, third, _ = found.measurement.layers
    assert first.total.fixed_bytes == codes_bytes()
    # 3 groups of 32 tokens, with a scale and a zero a channel
    assert third.total.fixed_bytes == 2 * HEADS * DIM * (len(TEXT) * bits / 8 + 3 * 4)
    assert found.measurement.quality.kl_nats > 0
    text = " ".join(render(found, "table").split())
    assert f"K{bits} V{bits}, groups of 32, for 2 of 4 entries" in text
    assert "Entries 0-1: quantized already" in text
    assert from_json(to_json(found)) == found


def test_every_result_of_a_part_says_of_how_much(part, cachegen, folder, files):
    for found in (
        sweep(part, bits=(2, 4), quality=True),
        plan(part, target_bits=4.5, choices=(2, 4)),
        compare(part, schemes=("group", "mlx")),
        sensitivity(part, settings=Settings(2, 2)),
        verify(part, settings=Settings(2, 2)),
    ):
        assert PART in notice(found)
        assert "for 2 of 4 entries" in " ".join(render(found, "table").split())
        assert from_json(to_json(found)) == found
    done = cachegen(
        "quality", "--bits", "2", "--prompt-cache-file", files[2], "--model", folder,
        "--prompt", NEXT, "--fail-if-kl-above", "0",
    )  # fmt: skip
    assert done.code == 3 and "FAIL 2 bits, groups of 32, for 2 of 4 entries: KL" in done.err
    assert PART in done.err


def test_caches_of_which_settings_apply_to_other_entries(whole, part):
    both = analyze([part, part], bits=2, quality=True).measurement
    assert both.settings.stored == StoredCodes("mlx 4 bits, groups of 64", 2, 4)
    with pytest.raises(InputError, match="not quantized alike"):
        analyze([part, whole], bits=2, quality=True)


def test_the_warning_of_few_tokens_is_of_the_codes_that_are_there(whole):
    [few] = [n.message for n in analyze(whole, bits=8).run.warnings if n.code == "short-prompt"]
    assert few.startswith(f"with {len(TEXT)} tokens for codes of 4 bits")


def test_stored_entries_join_no_basis(model, whole, part, tmp_path):
    profile = tmp_path / "p.safetensors"
    calibrate(model, [TEXT * 2, NEXT * 2], profile, weigh=0)
    with pytest.raises(InputError, match="some are not here"):
        analyze(part, scheme="transform", profile=profile)
    alone = analyze(part, scheme="transform:basis=layer", profile=profile).measurement
    assert alone.layers[0].total.fixed_bytes == codes_bytes()
    for basis in ("model", "layer"):
        found = analyze(whole, scheme=f"transform:basis={basis}", profile=profile)
        assert found.measurement.totals.fixed_bytes == ENTRIES * codes_bytes()
        assert found.measurement.settings.profile is None


def test_scales_of_32_bits_are_coded_in_16(model, tmp_path):
    cache = capture_file(write(tmp_path / "c.safetensors", model, 4, mx.float32))
    found = verify(cache)
    assert found.passed and found.fixed_bytes == ENTRIES * codes_bytes()
    result = analyze(cache)
    # they are rounded as they are read, which is said; what they were before is not there
    assert result.measurement.totals.relative_rms_error is None
    assert "rounded-to-16-bits" in [notice.code for notice in result.run.warnings]


def test_what_settings_do_not_apply_to_is_in_no_conclusion(part):
    """Of a mixed cache: no sensitivity, no planned width and no error of its own codes."""
    found = sensitivity(part, settings=Settings(2, 2))
    kept = {kv.layer for kv in part.layers if kv.stored}
    assert kept and not kept & {row.layer for row in found.rows}
    assert len(found.by_layer) == len(part.layers) - len(kept)
    measured = analyze(part, bits=2).measurement
    for layer in measured.layers:
        assert (layer.total.relative_rms_error is None) == bool(layer.stored)
    errors = [la.total for la in measured.layers if not la.stored]
    energy = sum(e.error_energy for e in errors) / sum(e.signal_energy for e in errors)
    assert measured.totals.relative_rms_error == pytest.approx(energy**0.5)
    planned = plan(part, target_bits=6.0, choices=(2, 3, 4))
    rows = [line.split(",") for line in render(planned, "csv").splitlines()]
    widths = rows[0].index("key_bits")
    assert [not row[widths] for row in rows[1 : 1 + len(part.layers)]] == [
        bool(kv.stored) for kv in part.layers
    ]

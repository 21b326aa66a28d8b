"""transform: its error, its units, its files, and what is said of its profile."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachegen_cli import (
    InputError,
    UsageError,
    analyze,
    calibrate,
    capture,
    capture_file,
    compare,
    from_json,
    inspect,
    load_model,
    load_packed,
    load_profile,
    pack,
    render,
    sensitivity,
    sweep,
    to_json,
    unpack,
    verify,
)
from cachegen_cli.coding.container import Reader
from cachegen_cli.kvcache import join, split
from cachegen_cli.results.settings import Settings
from cachegen_cli.results.spans import spans
from cachegen_cli.rows import no_rows
from cachegen_cli.schemes import Place, from_header, parse, scheme_at, to_header
from cachegen_cli.tensors import Tensor
from cachegen_cli.units import units
from cachegen_cli.unpacking import decoded_planes, read_layers
from cachegen_cli.values import Values

CALIBRATED = [
    "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2,
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))\n" * 2,
    "Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind. " * 2,
]
TEXT = "In the morning the ferryman found the rope cut and the far bank empty of people. " * 2


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    found = tmp_path_factory.mktemp("profile") / "p.safetensors"
    calibrate(model, CALIBRATED, found, weigh=0)
    return found


@pytest.fixture(scope="module")
def other(model, tmp_path_factory):
    found = tmp_path_factory.mktemp("other") / "q.safetensors"
    calibrate(model, CALIBRATED[:2], found, weigh=0)
    return found


@pytest.fixture(scope="module")
def text(model):
    return capture(model, TEXT, continuation=60)


def chosen(path, scheme="transform", **rest):
    name, options = parse(scheme)
    return Settings(0, 0, scheme=name, options=options, profile=load_profile(path).info, **rest)


@given(
    kind=st.sampled_from(["random", "zero", "constant", "outlier"]),
    tokens=st.integers(1, 40),
    dtype=st.sampled_from([mx.float16, mx.bfloat16]),
    basis=st.sampled_from(["layer", "model"]),
    error=st.sampled_from([0.02, 0.3]),
    tensor=st.sampled_from(["keys", "values"]),
)
@settings(max_examples=40, deadline=None)
def test_codes_come_back_and_the_error_is_bounded(path, kind, tokens, dtype, basis, error, tensor):
    rng = np.random.default_rng(tokens)
    entries = (0, 1, 2, 3) if basis == "model" else (2,)
    x = rng.normal(size=(2 * len(entries), tokens, 16)) * 0.3
    x = {"zero": 0 * x, "constant": 0 * x + 0.3}.get(kind, x)
    if kind == "outlier":
        x[0, 0, 0] = 3e4
    x = mx.array(x.astype(np.float32)).astype(dtype)
    setting = chosen(path, f"transform:error={error},basis={basis}")
    profile, rows = load_profile(path), no_rows(tokens)
    dtype_name = str(dtype).removeprefix("mlx.core.")
    scheme = scheme_at(setting, Place(tensor, 0, 4, 0, dtype_name, "", profile, entries))
    found = Tensor(Values("it", x, rows), scheme, setting, restored=True).settle()
    restored = found.restored()
    assert restored.shape == x.shape and restored.dtype == dtype
    section = found.section()
    again = from_header(to_header(scheme), profile, tensor, entries)
    assert again == scheme
    planes = decoded_planes(section, again, (1, scheme.components, tokens), rows)
    assert (planes[0] == found.planes[0].codes).all()
    back = again.restore(planes, section.parameters, section.wide, dtype, rows)
    assert mx.array_equal(back, restored)
    sizes = found.result()
    assert len(section.to_bytes()) <= sizes.coded_bytes <= 1.001 * len(section.to_bytes()) + 16
    assert sizes.elements == x.size and sizes.parameter_bytes == 0
    # what is coded is off by half a step at most, in the basis
    known = scheme.found
    lost = scheme.code(x, rows, {}).restored - x.astype(mx.float32)
    if known.rotary:
        lost = known.rotary.undo(lost, rows.positions)
    flat = np.array(lost.transpose(1, 0, 2).reshape(tokens, -1)) / np.array(known.scale)
    parts = flat @ np.array(known.leading(scheme.components)).T
    # vectors of 8 bits are orthogonal to a hundredth
    size = np.abs(np.array(x.astype(mx.float32))).max() / np.array(known.scale).min() + 1
    assert np.abs(parts).max() <= scheme.step / 2 + 0.03 * size * np.sqrt(flat.shape[1])


def test_smaller_steps_lose_less(text, path):
    errors, bits = [], []
    for error in (0.5, 0.1, 0.02, 0.004):
        found = analyze(text, scheme=f"transform:error={error}", profile=path).measurement.totals
        errors.append(found.relative_rms_error)
        bits.append(found.coded_bits_per_element)
    assert errors == sorted(errors, reverse=True) and bits == sorted(bits)
    assert errors[-1] < 0.02


def test_a_row_names_its_layers(text, path):
    result = analyze(text, scheme="transform", profile=path, quality=False)
    [row] = result.measurement.layers
    assert row.layers == (0, 1, 2, 3) and row.label == "0-3"
    assert row.keys.elements == sum(kv.keys.size for kv in text.layers)
    table = render(result, "table")
    assert "\n  0-3 " in table and f"Profile {path}" in " ".join(table.split("\n"))
    assert "0-3," in render(result, "csv") and "| 0-3 |" in render(result, "markdown")
    assert from_json(to_json(result)) == result
    assert result.measurement.settings.profile == load_profile(path).info
    by_layer = analyze(text, scheme="transform:basis=layer", profile=path).measurement
    assert [row.label for row in by_layer.layers] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((5,), "5"), ((0, 1, 2), "0-2"), ((0, 2), "0,2"), ((0, 1, 4, 5), "0-1,4-5"),
     ((0, 2, 4), "3 of 0-4")],
)  # fmt: skip
def test_layers_for_people(numbers, shown):
    assert spans(numbers) == shown


def test_entries_are_joined_and_split_again(text):
    joined = join(text.layers)
    assert joined.keys.shape[0] == 8 and joined.layers == (0, 1, 2, 3)
    assert joined.name == "layers 0-3" and text.layers[1].name == "layer 1"
    for kv, back in zip(text.layers, split(joined), strict=True):
        assert mx.array_equal(kv.keys, back.keys) and mx.array_equal(kv.values, back.values)
        assert (kv.layer, kv.members) == (back.layer, back.members)


def test_unequal_entries_are_refused(text, path):
    first, *rest = text.layers
    short = replace(first, keys=first.keys[:, 1:], values=first.values[:, 1:], tokens_seen=3)
    with pytest.raises(InputError, match="unequal numbers of tokens"):
        list(units([short, *rest], chosen(path)))
    with pytest.raises(InputError, match="some are not here"):
        list(units(rest, chosen(path)))
    wide = replace(first, keys=mx.concatenate([first.keys, first.keys]))
    with pytest.raises(InputError, match="no basis for cache entry 0"):
        list(units([wide, *rest], chosen(path)))


@pytest.mark.parametrize("scheme", ["transform", "transform:basis=layer", "cachegen"])
def test_files_come_back_with_their_profile_alone(text, path, other, tmp_path, scheme):
    setting = chosen(path, scheme, keep_first=2, keep_last=1)
    target = tmp_path / "t.cgkv"
    packed = pack(text, target, setting)
    assert packed.measurement.settings == setting
    assert inspect(target).measurement.layers == packed.measurement.layers
    layers = list(read_layers(Reader.open(target), load_profile(path)))
    assert [kv.layer for kv in layers] == [0, 1, 2, 3]
    for kv, back in zip(text.layers, layers, strict=True):
        assert mx.array_equal(kv.keys[:, :2], back.keys[:, :2])
        assert mx.array_equal(kv.values[:, -1:], back.values[:, -1:])
        assert back.keys.shape == kv.keys.shape and back.keys.dtype == kv.keys.dtype
    assert len(load_packed(target, text.loaded.network, profile=path)) == 4
    for wrong, words in ((None, "needs the profile"), (other, "another profile")):
        with pytest.raises(InputError, match=words):
            unpack(target, tmp_path / "t.safetensors", profile=wrong)
    assert not (tmp_path / "t.safetensors").exists()
    unpack(target, tmp_path / "t.safetensors", profile=path)
    again = capture_file(tmp_path / "t.safetensors").layers
    assert all(mx.array_equal(a.keys, b.keys) for a, b in zip(layers, again, strict=True))
    twice = tmp_path / "u.cgkv"
    pack(text, twice, setting)
    assert twice.read_bytes() == target.read_bytes()


def test_a_cache_file_needs_no_model_to_lose_its_rotation(model, path, tmp_path, cachegen, llama):
    file = tmp_path / "c.safetensors"
    assert cachegen("pack", "--model", llama, "-p", TEXT, "-o", tmp_path / "c.cgkv").code == 0
    unpack(tmp_path / "c.cgkv", file)
    coded = pack(file, tmp_path / "d.cgkv", chosen(path)).measurement.totals
    from_model = analyze(model, TEXT, scheme="transform", profile=path).measurement.totals
    assert coded.coded_bytes == pytest.approx(from_model.coded_bytes, rel=0.02)


@pytest.mark.parametrize("scheme", ["transform", "transform:basis=layer", "cachegen"])
def test_verify_passes(text, path, scheme):
    found = verify(text, settings=chosen(path, scheme))
    assert found.passed
    assert from_json(to_json(found)) == found
    if scheme == "transform":
        assert [check.label for check in found.checks] == ["0-3"]


def test_symbol_tables_of_the_profile_are_not_in_the_stream(text, path):
    plain = analyze(text, scheme="cachegen").measurement
    found = analyze(text, scheme="cachegen", profile=path).measurement
    used = [t for t in found.tensors if t.symbol_model == "calibrated"]
    assert used and all(t.table_bytes == 0 for t in used)
    assert found.totals.coded_bytes < plain.totals.coded_bytes
    assert found.totals.relative_rms_error == plain.totals.relative_rms_error


def test_sensitivity_is_by_unit(text, path):
    found = sensitivity(text, settings=chosen(path))
    assert [(row.label, row.tensor) for row in found.rows] == [("0-3", "keys"), ("0-3", "values")]
    assert found.together.kl_nats > 0
    assert from_json(to_json(found)) == found and "0-3" in render(found, "table")


def test_a_sweep_has_one_row(text, path):
    assert len(sweep(text, scheme="transform", profile=path).rows) == 1


@pytest.mark.parametrize("option", ["bits=2", "kl=0.001"])
def test_targets_are_met(text, path, option):
    found = analyze(text, scheme=f"transform:{option}", profile=path, quality=True).measurement
    if "bits" in option:
        assert found.totals.coded_bits_per_element == pytest.approx(2, rel=0.03)
    else:
        assert 0.0008 < found.quality.kl_nats <= 0.001
    assert "error" in found.settings.options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scheme": "transform"}, "needs a profile"),
        ({"scheme": "transform:basis=head", "profile": True}, "no basis 'head'"),
        ({"scheme": "transform:error=9", "profile": True}, "no error of 9"),
        ({"scheme": "transform:step=1,error=0.1", "profile": True}, "one of error, step"),
        ({"scheme": "transform:bits=-1", "profile": True}, "is no target"),
        ({"scheme": "transform:bits=1e9", "profile": True}, "is no target"),
        ({"scheme": "transform:step=1e300", "profile": True}, "no step of 1e.300"),
        ({"scheme": "transform:step=nan", "profile": True}, "'step=nan' is not a number"),
        ({"scheme": "transform:error=1,error=2", "profile": True}, "given twice"),
        ({"scheme": "transform:kl=0.01", "profile": True}, "transform:kl=X has to measure"),
        ({"scheme": "uniform:bits=3,error=0.2"}, "one of error, step, bits and kl"),
        ({"scheme": "uniform:step=1e-300"}, "no step of 1e-300"),
        ({"scheme": "uniform:error=nan"}, "'error=nan' is not a number"),
        ({"scheme": "uniform:error=2"}, "no error of 2"),
        ({"scheme": "uniform", "profile": True}, "uses no profile"),
        ({"scheme": "transform", "profile": True, "schedule": "depth"}, "no code widths"),
    ],
)
def test_what_makes_no_sense(text, path, arguments, words):
    given = arguments | ({"profile": path} if "profile" in arguments else {})
    with pytest.raises(UsageError, match=words):
        analyze(text, **given)


def test_comparison_with_a_profile(text, path, model):
    found = compare(text, profile=path, schemes=["group", "transform", "transform:basis=layer"])
    assert found.schemes == ["group", "transform", "transform:basis=layer"]
    assert {p.settings.profile for p in found.points if p.settings.scheme == "transform"} == {
        load_profile(path).info
    }
    table = render(found, "table")
    assert "transform:error=" in table and "kept once for the model" in " ".join(table.split())
    assert from_json(to_json(found)) == found
    for one in found.standings:
        tokens = found.profile_pays_tokens(one)
        if one.scheme == "group":
            assert tokens is None and found.profile_of(one) is None
            continue
        seed = next(s for s in found.standings if s.scheme == "group")
        saved = found.bytes_at(seed) - found.bytes_at(one)
        profile = load_profile(path).info.profile_bytes
        if saved > 0:
            per_token = saved / found.run.prompt.tokens
            assert (tokens - 1) * per_token < profile <= tokens * per_token
    unseen = "Nothing of the kind was ever read before by anybody at all, it seems to us now. "
    for cut in (CALIBRATED[0], CALIBRATED[0][20:], CALIBRATED[0] + "And so on.",
                unseen + CALIBRATED[0][:81]):  # fmt: skip
        with pytest.raises(UsageError, match="among the texts of profile"):
            compare(model, cut, profile=path, schemes=["transform"])


def test_a_floor_that_no_step_comes_below(text, model, tmp_path):
    """Of a profile of few components; no figure may lie below it."""
    few = tmp_path / "few.safetensors"
    made = calibrate(model, CALIBRATED, few, components=12, weigh=0)
    lost = max(1 - unit.energy for unit in made.units if len(unit.layers) > 1)
    assert f"is lost at any step: {100 * lost:.1f} % of" in " ".join(render(made, "table").split())
    found = compare(text, profile=few, schemes=["transform", "uniform"], at_kl=1e-5)
    [floor] = found.floors
    tiny = analyze(text, scheme="transform:error=0.0001", profile=few, quality=True)
    kls = [p.quality.kl_nats for p in found.points if p.settings.scheme == "transform"]
    # a larger step may by chance lose a little less: no figure lies below the floor
    assert floor.kl_nats == min(*kls, tiny.measurement.quality.kl_nats) > 1e-5
    assert len(kls) == 2
    [unmet] = found.out_of_reach
    assert unmet.scheme == "transform" and "its floor" in unmet.reason
    assert [one.scheme for one in found.standings] == ["uniform"]
    shown = " ".join(render(found, "table").split())
    assert f"Floor of transform on these texts: KL {floor.kl_nats:.3g}" in shown
    assert "transform does not meet KL 1e-05 nats" in shown and "~" not in shown
    assert from_json(to_json(found)) == found
    above = compare(text, profile=few, schemes=["transform"], at_kl=1.3 * floor.kl_nats)
    assert [one.scheme for one in above.standings] == ["transform"]
    with pytest.raises(InputError, match="no step of transform holds") as refused:
        analyze(text, scheme="transform:kl=0.00001", profile=few, quality=True)
    assert "beyond them is lost" in refused.value.hint


def test_command(cachegen, llama, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for place, one in enumerate(CALIBRATED):
        (corpus / f"{place}.txt").write_text(one)
    out = tmp_path / "p.safetensors"
    asked = ("calibrate", "--model", llama, "--prompt", f"@{corpus}", "-o", out)
    done = cachegen(*asked, "--weigh", 1)
    assert done.code == 0 and f"Wrote {out}" in done.err and "  0-3  keys" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "few for bases" not in done.out
    again = cachegen(*asked)
    assert again.code == 2 and "--force" in again.err
    listed = cachegen(*asked, "--force", "--weigh", 0, "--wide", "--json")
    assert listed.code == 0 and from_json(listed.out).units[0].layers == (0, 1, 2, 3)
    used = cachegen("analyze", "--model", llama, "-p", TEXT, "--scheme", "transform",
                    "--profile", out)  # fmt: skip
    assert used.code == 0 and "0-3" in used.out and "Profile" in used.out
    assert max(map(len, used.out.splitlines())) <= 80
    for arguments, words in (
        (("calibrate", "--model", llama, "-o", out, "--force"), "no texts"),
        (("calibrate", "--model", llama, "-p", "abc"), "where to write"),
        (("calibrate", "--model", llama, "-p", "abc", "-o", "p.bin"), "does not end in"),
        (("analyze", "--model", llama, "-p", "abc", "--profile", out), "uses no profile"),
        (("analyze", "--scheme", "transform", "-p", "abc"), "needs a profile"),
        (("analyze", "--scheme", "transform:bits", "-p", "abc"), "is not a number"),
        (("plan", "--target-bits", 4, "--scheme", "transform", "--profile", out), "no code width"),
    ):
        failed = cachegen(*arguments)
        assert failed.code == 2 and words in failed.err and "hint: " in failed.err, failed.err
    missing = cachegen("compare", "--model", llama, "-p", "abc", "--profile", "no.safetensors")
    assert missing.code == 1 and "no profile 'no.safetensors'" in missing.err


@pytest.mark.parametrize("scheme", ["transform", "uniform", "exact", "cachegen", "group"])
def test_everything_may_be_kept(text, path, scheme, tmp_path):
    profile = path if scheme == "transform" else None
    asked = {"keep_first": 400, "keep_last": 9, "scheme": scheme, "profile": profile}
    found = analyze(text, quality=True, **asked).measurement
    assert found.totals.kept_bytes == found.totals.raw_bytes and found.quality.kl_nats < 1e-6
    assert verify(text, settings=found.settings).passed
    pack(text, tmp_path / "k.cgkv", found.settings)
    unpack(tmp_path / "k.cgkv", tmp_path / "k.safetensors", profile=profile)
    back = capture_file(tmp_path / "k.safetensors").layers
    assert all(mx.array_equal(a.keys, b.keys) for a, b in zip(text.layers, back, strict=True))


def test_what_only_shapes_told_is_said(text, path, model, tmp_path):
    from cachegen_cli import write_capture

    file = tmp_path / "c.safetensors"
    write_capture(capture(model, TEXT, keep_cache=True), file)
    assert not pack(file, tmp_path / "c.cgkv", chosen(path)).warnings  # it tells its model
    arrays, strings = mx.load(str(file), return_metadata=True)
    del strings["0.model_fingerprint"]
    mx.save_safetensors(str(file), arrays, strings)
    packed = pack(file, tmp_path / "c.cgkv", chosen(path))
    assert [notice.code for notice in packed.warnings] == ["profile-model-not-checked"]
    assert inspect(tmp_path / "c.cgkv").warnings == packed.warnings
    assert "only shapes are compared" in " ".join(render(packed, "table").split())
    uniform = pack(file, tmp_path / "u.cgkv", Settings(0, 0, scheme="uniform"))
    assert [notice.code for notice in uniform.warnings] == ["rotation-stays"]
    assert from_json(to_json(uniform)) == uniform
    assert not pack(text, tmp_path / "t.cgkv", chosen(path)).warnings


def test_a_comparison_that_uses_no_profile_takes_none(text, path):
    with pytest.raises(UsageError, match="none of these schemes uses a profile"):
        compare(text, profile=path, schemes=["group", "uniform"])


def test_values_beyond_the_codes_are_refused(text):
    first = text.layers[0]
    keys, values = (x.astype(mx.bfloat16) for x in (first.keys, first.values))
    odd = replace(text, layers=[replace(first, keys=keys * 0 + 1e7, values=values)], loaded=None)
    assert analyze(odd, scheme="uniform:step=1").measurement.totals.elements
    keys = mx.where(keys > 0, 1e7, -1e7).astype(mx.bfloat16)
    odd = replace(odd, layers=[replace(odd.layers[0], keys=keys)])
    with pytest.raises(InputError, match=r"beyond 2.30 steps"):
        analyze(odd, scheme="uniform:step=0.0001")


def test_verify_counts_layers_not_rows(text, path):
    settings = Settings(scheme="transform", profile=load_profile(path).info)
    found = verify(text, settings=settings)
    assert len(found.checks) == 1
    assert "PASS: 4 layers came back" in render(found, "table", width=500)
    failing = replace(found, checks=(replace(found.checks[0], failure="other codes"),))
    assert "FAIL: 4 of 4 layers." in render(failing, "table", width=500)

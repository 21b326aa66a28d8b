"""Numbers at the ends of 16-bit dtypes: what comes back is finite, and measured as it comes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, save_prompt_cache
from tiny import LLAMA, make_model

from cachegen_cli import (
    InputError,
    analyze,
    cachegen_quant_dequant,
    calibrate,
    capture,
    capture_file,
    load_model,
    load_packed,
    load_profile,
    pack,
    verify,
)
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.kvcache.writing import state_of
from cachegen_cli.quantizing import quantized
from cachegen_cli.results.settings import Settings
from cachegen_cli.rows import no_rows
from cachegen_cli.schemes import parse
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.schemes.group import Group
from cachegen_cli.schemes.uniform import Uniform

HEADS, TOKENS, DIM = 2, 40, 32
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2**-7) * 2.0**127}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # above 0
SCHEMES = [
    *(("group", bits) for bits in (1, 2, 3, 4, 8)),
    *(("mlx:group_size=32", bits) for bits in (2, 3, 4, 8)),
    *((f"cachegen:bins={bins}", 0) for bins in (4, 32, 256)),
    *((f"uniform:error={error}", 0) for error in (1.0, 0.05, 1e-5)),
    ("uniform:step=0.5", 0),
    *((f"transform:error={error},basis=layer", 0) for error in (0.5, 0.01)),
    ("exact", 0),
]


def numbers(kind: str, dtype: str) -> np.ndarray:
    """[HEADS, TOKENS, DIM] in float64, all of which the dtype holds."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(HEADS, TOKENS, DIM))
    largest, smallest = LARGEST[dtype], SMALLEST[dtype]
    if kind == "to the largest":
        x = rng.uniform(-1, 1, x.shape) * largest
        x[0, 0], x[0, 1] = largest, -largest
    elif kind == "alternating":
        x = np.where(np.arange(TOKENS)[None, :, None] % 2, largest, -largest) + 0 * x
    elif kind == "all largest":
        x = np.full_like(x, largest)
    elif kind == "half the largest":
        x = x / np.abs(x).max() * largest / 2
    elif kind == "one huge channel":
        x[:, :, 5] *= largest / 8
    elif kind == "one huge number":
        x[0, TOKENS // 2, 0] = largest
    elif kind == "subnormal":
        x = np.round(x * 9) * smallest
    elif kind == "smallest":
        x = np.where(x > 1, smallest, 0.0)
    elif kind == "a few steps above the smallest":
        x = np.round(x * 300) * smallest
    elif kind == "small beside large":
        x[:, :, ::2] = np.round(x[:, :, ::2] * 9) * smallest
    elif kind == "zeros":
        x *= 0
    elif kind == "constant":
        x = np.full_like(x, 0.3)
    return np.array(cast(np.clip(x, -largest, largest), dtype).astype(mx.float32), np.float64)


HUGE = (
    "to the largest", "alternating", "all largest", "half the largest", "one huge channel",
    "one huge number",
)  # fmt: skip
SMALL = ("subnormal", "smallest", "a few steps above the smallest")
UNEVEN = (*SMALL, *HUGE[4:])
KINDS = (*HUGE, *SMALL, "small beside large", "zeros", "constant", "normal")


def cast(x: np.ndarray, dtype: str) -> mx.array:
    return mx.array(x.astype(np.float32)).astype(getattr(mx, dtype))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose head_dim MLX can quantize."""
    folder = tmp_path_factory.mktemp("models") / "m"
    return load_model(str(make_model(folder, LLAMA | {"head_dim": DIM})))


@pytest.fixture(scope="module")
def profile(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "p.safetensors"
    calibrate(model, ["The river rose in the night and took the lower bridge. " * 3], path, weigh=0)
    return path


@pytest.fixture(scope="module")
def plain(model):
    return capture(model, "x" * TOKENS)


def filled(plain, kinds, dtype: str):
    """The capture with a layer for each kind of numbers, as keys and turned round as values."""
    layers = []
    for place, kind in enumerate(kinds):
        x = numbers(kind, dtype)
        keys, values = cast(x, dtype), cast(-x[:, ::-1], dtype)
        layers.append(LayerKV(place, "KVCache", keys, values, TOKENS))
    return replace(plain, layers=layers)


def settings_of(text: str, bits: int, profile, **rest) -> Settings:
    name, options = parse(text)
    needed = load_profile(profile).info if name == "transform" else None
    return Settings(bits, bits, scheme=name, options=options, profile=needed, **rest)


def refusal(text: str, kind: str, dtype: str) -> str:
    """In which words a scheme refuses such numbers; "" where it takes them."""
    name = text.partition(":")[0]
    if dtype == "bfloat16" and kind in HUGE:
        if name == "uniform":  # a mean square beyond 1e60, or by its step codes beyond 2^30
            return "too large for a step|beyond 2.30 steps"
        if name == "transform":
            return "not finite|beyond 2.30 steps"
        # max - min is beyond float32
        if (name == "group" and kind in HUGE[:2]) or (name == "mlx" and kind == HUGE[0]):
            return f"{name} would give back numbers that are not finite"
    return ""


def in_float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("text", "bits"), SCHEMES)
def test_what_comes_back_is_finite_and_measured(plain, profile, tmp_path, text, bits, dtype):
    taken = [kind for kind in KINDS if not refusal(text, kind, dtype)]
    for kinds, kept in zip((taken[::3], taken[1::3], taken[2::3]), (0, 3, 0), strict=True):
        chosen = settings_of(text, bits, profile, keep_first=kept, keep_last=kept)
        for first in range(0, len(kinds), 4):  # layers of the profile
            source = filled(plain, kinds[first : first + 4], dtype)
            packed = pack(source, tmp_path / "c.cgkv", chosen).measurement
            back = load_packed(tmp_path / "c.cgkv", profile=chosen.profile and profile)
            for place, (kv, entry, sizes) in enumerate(
                zip(source.layers, back, packed.layers, strict=True)
            ):
                tensors = quantized(kv, place, 4, chosen, source.context, restored=True)
                for tensor, x, y, told in zip(
                    tensors,
                    (kv.keys, kv.values),
                    (entry.keys[0], entry.values[0]),
                    (sizes.keys, sizes.values),
                    strict=True,
                ):
                    where = f"{kinds[first + place]}: {tensor.name}"
                    assert mx.isfinite(y).all() and y.dtype == x.dtype, where
                    same = mx.array_equal(y.view(mx.uint16), tensor.restored().view(mx.uint16))
                    assert same, where
                    signal = np.square(in_float64(x)).sum()
                    error = np.square(in_float64(y) - in_float64(x)).sum()
                    assert told.signal_energy == pytest.approx(signal, rel=1e-5), where
                    close = pytest.approx(error, rel=1e-4, abs=1e-12 * signal)
                    assert told.error_energy == tensor.error == close, where


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("text", "bits"), SCHEMES)
def test_what_a_scheme_cannot_hold_is_refused_in_words(plain, profile, tmp_path, text, bits, dtype):
    for kind in KINDS:
        if words := refusal(text, kind, dtype):
            with pytest.raises(InputError, match=words) as refused:
                source, chosen = filled(plain, [kind], dtype), settings_of(text, bits, profile)
                pack(source, tmp_path / "c.cgkv", chosen)
            assert refused.value.message.startswith("layer 0's keys") and refused.value.hint


@pytest.mark.parametrize("text", ["uniform", "uniform:error=1e-5", "uniform:step=0.5"])
def test_largest_numbers_whose_rotation_is_not_known(plain, tmp_path, text):
    source = replace(filled(plain, HUGE[:3], "float16"), loaded=None)
    chosen = settings_of(text, 0, None)
    pack(source, tmp_path / "c.cgkv", chosen)
    for kv, entry in zip(source.layers, load_packed(tmp_path / "c.cgkv"), strict=True):
        error = in_float64(entry.keys[0]) - in_float64(kv.keys)
        assert np.isfinite(error).all()
        assert np.sqrt(np.square(error).mean()) < 0.06 * LARGEST["float16"]
    assert verify(source, settings=chosen).passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "steps",
    [
        [("group", bits) for bits in range(1, 9)],
        [("mlx:group_size=32", bits) for bits in (2, 3, 4, 5, 6, 8)],
        [(f"cachegen:bins={bins}", 0) for bins in (4, 8, 16, 32, 64, 128, 256)],
        [(f"uniform:error={error}", 0) for error in (1.0, 0.3, 0.05, 1e-2, 1e-3, 1e-5)],
        [(f"transform:error={error},basis=layer", 0) for error in (0.5, 0.1, 0.01, 0.001)],
    ],
    ids=lambda steps: steps[0][0].partition(":")[0],
)
def test_what_takes_more_bits_loses_no_more(plain, profile, steps, dtype):
    own = steps[0][0].startswith("mlx")
    for kind in KINDS:
        # MLX rounds scales of small numbers to few digits, at more bits to fewer
        if any(refusal(text, kind, dtype) for text, _ in steps) or (own and kind in UNEVEN):
            continue
        source, errors = filled(plain, [kind], dtype), []
        for text, bits in steps:
            chosen = settings_of(text, bits, profile)
            tensors = quantized(source.layers[0], 0, 4, chosen, source.context)
            signal = sum(tensor.signal for tensor in tensors)
            errors.append(np.sqrt(sum(t.error for t in tensors) / signal) if signal else 0.0)
        for fewer, more in pairwise(errors):
            # 16-bit parameters move the largest number by a part of it at any width
            assert more <= 1.02 * fewer + 2**-10, f"{kind}: {errors}"


def test_subnormal_channels_keep_every_number():
    """At 8 bits the step is the smallest, 1e-8, which float16 takes for 0."""
    x = mx.array(np.arange(31, dtype=np.uint16)[None, :, None]).view(mx.float16)
    coded = Group(8, 32).code(x, no_rows(31), {})
    assert np.array(coded.planes[0].codes)[0, 0].tolist() == [
        round(k * 2.0**-24 / np.float32(1e-8)) for k in range(31)
    ]
    assert mx.array_equal(coded.restored, x) and coded.error.item() == 0
    assert coded.parameters.stored_bytes == 2 * 4 + 1  # in float32, behind a mask


def test_a_constant_channel_needs_no_wide_parameters():
    coded = Group(8, 32).code(mx.full((1, 32, 4), 0.3, mx.float16), no_rows(32), {})
    assert coded.parameters.stored_bytes == 4 * 4


def test_powers_of_two_change_no_codes_of_cachegen():
    x = mx.random.normal((2, 8, 32), key=mx.random.key(0)).astype(mx.bfloat16)
    codes = CacheGen(32).code(x, no_rows(8), {}).planes[0].codes
    for power in (-120, -60, 60, 120):
        scaled = (x.astype(mx.float32) * 2.0**power).astype(mx.bfloat16)
        assert mx.array_equal(CacheGen(32).code(scaled, no_rows(8), {}).planes[0].codes, codes)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e20, 1e28])
def test_step_of_numbers_whose_squares_float32_does_not_hold(scale):
    x = cast(np.random.default_rng(0).normal(size=(2, 50, 32)) * scale, "bfloat16")
    own = Uniform(0.0, 0.05, {}).fitted(x, no_rows(50)).own
    exact = np.sqrt(np.square(in_float64(x)).mean()) * 0.05 * 12**0.5
    assert own.step.item() == pytest.approx(exact, rel=2**-12)
    mean = in_float64(x).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(in_float64(own.mean), mean, rtol=2**-8)


def test_the_seeds_dequantizer_gives_finite_numbers():
    x = mx.array([[-1e5], [3e4], [1e5]], mx.bfloat16)
    assert cachegen_quant_dequant(x, 2).tolist() == [[-65504.0], [33280.0], [65504.0]]


class TestVerify:
    def test_passes_on_the_largest_numbers(self, plain):
        source = filled(plain, HUGE[:4], "float16")
        for text, bits in (("group", 2), ("group", 3), ("group", 4), ("group", 8),
                           ("mlx:group_size=32", 4), ("cachegen", 0), ("exact", 0)):  # fmt: skip
            assert verify(source, settings=settings_of(text, bits, None)).passed

    def test_fails_on_numbers_that_are_not_finite(self, plain, monkeypatch):
        whole = Group.restore

        def overflowing(self, *args):
            values = whole(self, *args)
            return mx.where(mx.abs(values) >= 65504, values * 2, values)

        source = filled(plain, ["one huge number", "normal"], "float16")
        monkeypatch.setattr(Group, "restore", overflowing)
        found = verify(source, settings=Settings(4, 4))
        assert [check.failure for check in found.checks] == [
            "layer 0's keys: 1 numbers came back that are not finite; "
            "layer 0's values: 1 numbers came back that are not finite",
            "",
        ]


class TestFloat32:
    """Caches in float32 hold numbers that float16 does not."""

    @staticmethod
    def cache(scale: float, kind: str = "plain"):
        keys = mx.random.normal((1, 2, 20, 64), key=mx.random.key(0)) * scale
        entry = KVCache()
        entry.update_and_fetch(keys, keys / scale)
        return [entry.to_quantized(64, 4) if kind == "quantized" else entry]

    @pytest.mark.parametrize("kind", ["plain", "quantized"])
    def test_files_say_what_float16_does_not_hold(self, tmp_path, cachegen, kind):
        path = tmp_path / "c.safetensors"
        save_prompt_cache(str(path), self.cache(1e5, kind))
        for command in ("analyze", "verify"):
            done = cachegen(command, "--prompt-cache-file", path)
            assert done.code == 1
            assert (
                "layer 0's keys hold float32 numbers that float16 does not, whose largest is 65504"
            ) in " ".join(done.err.split())

    def test_nan_is_called_nan(self, tmp_path):
        [entry] = self.cache(1e5)
        entry.keys[0, 0, 0, 0] = float("nan")
        save_prompt_cache(str(tmp_path / "c.safetensors"), [entry])
        with pytest.raises(InputError, match="hold NaN or infinite values"):
            analyze(capture_file(tmp_path / "c.safetensors"))

    def test_codes_of_a_float32_cache_come_back(self, tmp_path):
        """Their scales are rounded to 16 bits, as all of the cache is."""
        path = tmp_path / "c.safetensors"
        save_prompt_cache(str(path), self.cache(3.0, "quantized"))
        source = capture_file(path)
        assert verify(source).passed
        keys = analyze(source).measurement.layers[0].keys
        assert keys.error_energy == 0 and keys.parameter_bytes == 2 * 20 * 2 * 2

    def test_codes_that_stand_for_more_than_the_largest(self, tmp_path):
        """As MLX's 16-bit scales do: 4680 * 28 - 65504 is 65536."""
        codes = mx.full((1, 1, 4, 8), 0xFFFFFFFF, mx.uint32)
        scales, biases = (mx.full((1, 1, 4, 1), v, mx.float16) for v in (8740.0, -65504.0))
        entry = QuantizedKVCache(64, 4)
        entry.keys = entry.values = (codes, scales, biases)
        entry.offset = 4
        save_prompt_cache(str(tmp_path / "c.safetensors"), [entry])
        source = capture_file(tmp_path / "c.safetensors")
        assert (source.layers[0].keys == 65504).all()
        assert verify(source).passed

    def test_captures_refuse_to_write_infinite_numbers(self):
        with pytest.raises(InputError, match="float32 numbers that float16 does not"):
            state_of(self.cache(1e5)[0], mx.float16)
        assert state_of(self.cache(1e5)[0], mx.bfloat16).keys.dtype == mx.bfloat16

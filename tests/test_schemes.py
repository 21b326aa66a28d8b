"""Every scheme: properties that all share, and golden values of each."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import shipped
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import LLAMA, make_model

from cachegen_cli import InputError, UsageError, analyze, capture, pack, plan, sweep, verify
from cachegen_cli.coding.container import Reader
from cachegen_cli.quality import Reference
from cachegen_cli.results.settings import Settings
from cachegen_cli.rope import Rotary
from cachegen_cli.rows import no_rows, rows_at
from cachegen_cli.schemes import SCHEMES, Place, from_header, parse, scheme_at, to_header
from cachegen_cli.schemes.cachegen import CacheGen
from cachegen_cli.schemes.uniform import Uniform
from cachegen_cli.tensors import Tensor
from cachegen_cli.unpacking import decoded_planes, read_layers
from cachegen_cli.values import Values

TEXT = "The river rose in the night and took the lower bridge with it. Nobody saw it go. " * 2


ROTARY = Rotary(dims=32, base=10000.0)


def tensor(x: mx.array, text: str, bits: int = 4, **rest) -> Tensor:
    """A tensor under a scheme, evaluated."""
    name, options = parse(text)
    group_size = 8 if text == "group" else None
    chosen = Settings(bits, bits, group_size, scheme=name, options=options, **rest)
    dtype = str(x.dtype).removeprefix("mlx.core.")
    rows = rows_at(x.shape[1], x.shape[1], 0, 0, [t % 7 for t in range(x.shape[1])])
    scheme = scheme_at(chosen, Place("keys", 0, 4, bits, dtype, ROTARY))
    values = Values("it", x, rows, chosen.keep_first, chosen.keep_last)
    return Tensor(values, scheme, chosen, restored=True).settle()


def values(kind: str, heads: int, tokens: int, dtype: mx.Dtype) -> mx.array:
    rng = np.random.default_rng(tokens)
    x = rng.normal(size=(heads, tokens, 32)) * np.exp(rng.normal(size=(heads, 1, 32)))
    if kind == "zero":
        x = np.zeros_like(x)
    elif kind == "constant":
        x = np.full_like(x, 0.3)
    elif kind == "outlier":
        x[0, 0, 0] = 3e4
    elif kind == "tiny":
        x *= 1e-7
    return mx.array(x.astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("text", ["group", "mlx:group_size=32", "cachegen", "exact", "uniform"])
@given(
    kind=st.sampled_from(["random", "zero", "constant", "outlier", "tiny"]),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 40),
    dtype=st.sampled_from([mx.float16, mx.bfloat16]),
    bits=st.sampled_from([2, 4, 8]),
)
@settings(max_examples=40, deadline=None)
def test_what_every_scheme_does(text, kind, heads, tokens, dtype, bits):
    x = values(kind, heads, tokens, dtype)
    found = tensor(x, text, bits)
    restored = found.restored()
    assert restored.shape == x.shape and restored.dtype == dtype
    section = found.section()
    scheme = from_header(to_header(found.scheme), None, "keys", (0,))
    assert scheme == found.scheme
    planes = decoded_planes(section, scheme, (heads, 32, tokens), found.rows)
    for back, plane in zip(planes, found.planes, strict=True):
        assert (back == plane.codes).all()
    again = scheme.restore(planes, section.parameters, section.wide, dtype, found.rows)
    assert mx.array_equal(again, restored)
    size, result = len(section.to_bytes()), found.result()
    assert size <= result.coded_bytes <= 1.001 * size + 24 * len(planes)
    assert result.elements == x.size
    assert result.bits == sum(scheme.plane_bits) or text == "uniform"
    assert len(section.parameters) == result.parameter_bytes
    error = np.abs(np.array(restored.astype(mx.float32) - x.astype(mx.float32)))
    largest = np.abs(np.array(x.astype(mx.float32)))
    if text == "exact":
        assert mx.array_equal(restored, x)
    elif text == "cachegen":
        # half a step of the token's scale, and the rounding to 16 bits
        bound = largest.max(axis=(0, 2), keepdims=True) / (2 * found.scheme.centre)
        assert (error <= bound * 1.01 + largest * 2**-8 + 6e-8).all()
    elif text == "uniform":
        # half a step in each of a rotated pair's two channels, and the rounding to 16 bits
        step = np.frombuffer(section.parameters[:4], "<f4")[0]
        assert (error <= 0.71 * step * 1.01 + largest.max() * 2**-7 + 6e-8).all()
        assert (result.relative_rms_error or 0) < 0.06 or kind in ("outlier", "tiny")
    elif text == "group":
        spread = largest.max(axis=(0, 1), keepdims=True) * 2 / (2**bits - 1)
        smallest = 2**bits * 1e-8  # the seed has no finer step, so no finer range
        assert (error <= spread * 1.02 + largest * 2**-7 + smallest + 6e-8).all()


def test_values_that_are_not_finite_are_refused():
    x = values("random", 2, 9, mx.float16)
    x[1, 3, 5] = float("nan")
    for text in ("group", "mlx", "cachegen", "exact", "uniform"):
        with pytest.raises(InputError, match="it hold NaN or infinite values"):
            _ = tensor(x, text + (":group_size=32" if text == "mlx" else "")).planes


def test_what_is_typed():
    assert parse("group") == ("group", {})
    assert parse("cachegen:bins=16,chunk=512") == ("cachegen", {"bins": 16, "chunk": 512})
    assert Settings(scheme="cachegen", options={"bins": 16, "chunk": 512}).scheme_text == (
        "cachegen:bins=16,chunk=512"
    )
    for text, words in (("poem", "not a scheme"), ("mlx:bins=3", "no option 'bins'"),
                        ("cachegen:bins=many", "not a number"), ("exact:x=1", "no option"),
                        ("cachegen:bins", "not a number"), ("group:", "")):  # fmt: skip
        if words:
            with pytest.raises(UsageError, match=words):
                parse(text)
    assert parse("group:") == ("group", {})


@pytest.mark.parametrize(
    ("text", "bits", "words"),
    [("mlx", 7, "no 7-bit quantizer"), ("mlx:group_size=16", 4, "no groups of 16"),
     ("mlx:group_size=64", 4, "do not divide head_dim 32"), ("cachegen:bins=1", 4, "bins"),
     ("cachegen:chunk=0", 4, "chunks of 0"), ("group:group_size=0", 4, "not a group size")],
)  # fmt: skip
def test_options_that_make_no_sense(text, bits, words):
    with pytest.raises(UsageError, match=words):
        tensor(values("random", 1, 5, mx.float16), text, bits)


@pytest.mark.parametrize(
    "data",
    [{}, {"name": "poem"}, {"name": "mlx", "bits": 4}, {"name": "mlx", "bits": "4",
     "group_size": 64}, {"name": "group", "bits": 9, "group_size": 8},
     {"name": "group", "bits": True, "group_size": 8}, {"name": "exact", "dtype": "int8"},
     {"name": "group", "bits": 4, "group_size": 0}, {"name": []}],
)  # fmt: skip
def test_headers_that_name_no_scheme(data):
    with pytest.raises(InputError, match="scheme cannot be read"):
        from_header(data, None, "keys", (0,))


class TestMlx:
    def test_codes_and_values_are_mlx_own(self):
        for dtype in (mx.float16, mx.bfloat16):
            x = values("random", 2, 20, dtype)
            for bits in (2, 3, 4, 5, 6, 8):
                found = tensor(x, "mlx:group_size=32", bits)
                packed, scales, biases = mx.quantize(x, group_size=32, bits=bits)
                words = np.array(packed).view(np.uint8).reshape(2, 20, -1)
                planes = np.unpackbits(words, axis=-1, bitorder="little").reshape(2, 20, 32, bits)
                codes = planes @ (1 << np.arange(bits))
                negative = np.array((scales < 0).astype(mx.uint8)).astype(bool)
                expected = np.where(negative, 2**bits - 1 - codes, codes)
                assert (found.planes[0].codes.swapaxes(1, 2) == expected).all()
                own = mx.dequantize(packed, scales, biases, group_size=32, bits=bits)
                difference = mx.abs(own.astype(mx.float32) - found.restored().astype(mx.float32))
                unit = mx.abs(own.astype(mx.float32)).max() * (2**-7 if dtype == mx.bfloat16
                                                               else 2**-9)  # fmt: skip
                assert difference.max() <= unit
                assert found.result().parameter_bytes == 2 * 2 * 2 * 20
                assert found.result().fixed_bytes == 2 * 20 * 32 * bits // 8 + 160

    def test_about_half_the_scales_are_negative_and_mirroring_pays(self):
        x = values("random", 4, 200, mx.float16)
        scales = mx.quantize(x, group_size=32, bits=4)[1]
        assert 0.3 < np.array(scales < 0).mean() < 0.7


class TestCacheGen:
    """Golden values computed from the shipped code's formulas by hand."""

    GOLDEN = (
        ([-15, -7.5, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2.5, 7.5, 15], 32,
         [0, 8, 14, 14, 14, 15, 16, 16, 16, 18, 22, 30]),
        ([-7, -3.5, -0.5, 0, 0.5, 1.5, 3.5, 7], 16, [0, 4, 6, 7, 8, 8, 10, 14]),
        ([1, 0.5, -0.25, 0.1, 0], 32, [30, 22, 11, 16, 15]),
        ([1, 0.5, -0.25, 0.1, 0], 16, [14, 10, 5, 8, 7]),
        ([1, 0.5, -0.25, 0.1, 0], 12, [10, 8, 4, 6, 5]),
        ([0, 0, 0], 32, [15, 15, 15]),
    )  # fmt: skip

    @pytest.mark.parametrize(("x", "bins", "codes"), GOLDEN)
    def test_codes(self, x, bins, codes):
        one = mx.array(x, mx.float32)[None, None]  # a head, a token
        coded = CacheGen(bins).code(one, no_rows(1), {})
        assert np.array(coded.planes[0].codes).ravel().tolist() == codes

    def test_values(self):
        x = mx.array(self.GOLDEN[0][0], mx.float16)[None, None]
        restored = np.array(CacheGen(32).code(x, no_rows(1), {}).restored).ravel()
        assert restored.tolist() == [-15, -7, -1, -1, -1, 0, 1, 1, 1, 3, 7, 15]
        x = mx.array([1, 0.5, -0.25, 0.1, 0], mx.float16)[None, None]
        restored = np.array(CacheGen(32).code(x, no_rows(1), {}).restored).ravel()[:3]
        assert np.abs(restored - [1, 0.46667, -0.26667]).max() < 1e-3

    def test_one_scale_over_all_heads(self):
        x = np.ones((2, 1, 4), np.float16)
        x[1, 0, 3] = 15
        coded = CacheGen(32).code(mx.array(x), no_rows(1), {})
        assert np.array(coded.parameters.numbers[0]).tolist() == [15]
        assert np.array(coded.planes[0].codes)[0].ravel().tolist() == [16] * 4

    def test_bins_by_layer(self):
        def bins(layers):
            places = [Place(t, i, layers, 0, "float16") for t in ("keys", "values")
                      for i in range(layers)]  # fmt: skip
            return [CacheGen.at(p, {}, 32).bins for p in places]

        assert bins(9) == [32] * 18
        assert bins(32) == [32] * 10 + [16] * 22 + [32] * 2 + [16] * 30
        assert CacheGen.at(Place("keys", 0, 32, 0, "float16"), {"bins": 12}, 32).bins == 12

    def test_tables_of_the_shipped_coder(self):
        assert shipped.cdf([15] * 256, 32)[[15, 16, 17, 32]].tolist() == [15, 65519, 65520, 65535]
        assert shipped.cdf([0] + [15] * 255, 32)[:3].tolist() == [0, 256, 257]
        assert shipped.cdf([14, 15, 16, 15], 32)[14:18].tolist() == [14, 16390, 49143, 65520]

    @pytest.mark.parametrize(
        ("codes", "length", "start", "digest"),
        [([15] * 256, 1, "40", None), ([0] * 256, 1, "40", None), ([30] * 256, 1, "40", None),
         ([14, 16] * 128, 33, "5555c792e02c23b2", "9503e793268bb2f8"),
         ([14, 15, 16, 15] * 64, 49, "2ab07e708e6060ac", "1836e6c2617b90df"),
         ([i % 31 for i in range(256)], 159, "", "12f29395d739992f"),
         ([i % 15 for i in range(256)], 126, "", "8b17bb1ae46c0999"),
         ([15, 15, 16, 14], 1, "90", None), ([15, 15, 16, 14, 15, 15, 0, 30], 3, "915f00", None)],
    )  # fmt: skip
    def test_streams_of_the_shipped_coder(self, codes, length, start, digest):
        data = shipped.encode(codes, shipped.cdf(codes, 32))
        assert len(data) == length and data.hex().startswith(start)
        assert digest is None or hashlib.sha256(data).hexdigest().startswith(digest)

    @pytest.mark.parametrize("tokens", [40, 256, 300, 700])
    @pytest.mark.parametrize("chunk", [256, 600])
    @pytest.mark.parametrize("bins", [12, 16, 32])
    def test_prediction_of_the_shipped_layout(self, tokens, chunk, bins):
        x = values("random", 2, tokens, mx.float16)
        found = tensor(x, f"cachegen:bins={bins},chunk={chunk}")
        codes = found.planes[0].codes.reshape(64, tokens)
        actual = 0
        for first in range(0, tokens, chunk):
            part = codes[:, first : first + chunk]
            actual += 2 * part.shape[1] + len(part) * 2 * (bins + 1)
            for channel in part.tolist():
                table = shipped.cdf(channel, bins)
                for start in range(0, len(channel), 256):
                    actual += 4 + len(shipped.encode(channel[start : start + 256], table))
        assert found.result().shipped_bytes == pytest.approx(actual, rel=0.005)

    def test_fixed_parts_of_the_shipped_layout(self):
        """32 layers of 1,024 channels, 256 tokens: tables, lengths, largest values."""
        codes = np.full((1024, 256), 15, np.uint8)
        streams = 1024  # a byte each
        assert 64 * (CacheGen(32).shipped_bytes(codes) - streams) == 4_620_288


def test_exact_is_beside_the_lossless_floor():
    rng = np.random.default_rng(0)
    x = mx.array(rng.normal(size=(2, 400, 64)).astype(np.float32)).astype(mx.bfloat16)
    result = tensor(x, "exact").result()
    assert result.error_energy == 0 and result.parameter_bytes == 0
    assert 10 < result.coded_bits_per_element < 11.5  # sign and mantissa 8, exponent about 2.5
    assert result.fixed_bytes == result.raw_bytes


@pytest.fixture(scope="module")
def wider(tmp_path_factory):
    """A tiny model whose head_dim MLX can quantize."""
    folder = tmp_path_factory.mktemp("wider") / "m"
    return make_model(folder, LLAMA | {"head_dim": 32})


@pytest.mark.parametrize(
    "text", ["mlx:group_size=32", "cachegen", "exact", "uniform:error=0.1", "group:group_size=16"]
)
def test_commands_with_every_scheme(wider, tmp_path, text):
    captured = capture(str(wider), TEXT, continuation=40)
    found = analyze(captured, scheme=text, quality=True)
    measured = found.measurement
    assert measured.settings.scheme_text == text
    name, options = parse(text)
    has_bits = SCHEMES[name].has_bits
    chosen = Settings(4 * has_bits, 4 * has_bits, scheme=name, options=options)
    packed = pack(captured, tmp_path / "c.cgkv", chosen)
    assert packed.measurement.settings == chosen == measured.settings
    layers = list(read_layers(Reader.open(tmp_path / "c.cgkv")))
    assert Reference(captured).compare(layers).quality() == measured.quality
    for guess, fact in zip(measured.tensors, packed.measurement.tensors, strict=True):
        assert fact.coded_bytes <= guess.coded_bytes <= 1.001 * fact.coded_bytes + 64
    assert verify(captured, settings=chosen).passed
    rows = sweep(captured, scheme=text).rows
    assert len(rows) == (4 if has_bits else 1)
    if has_bits:
        assert plan(captured, target_bits=6, choices=(2, 4), settings=chosen).key_bits
    else:
        with pytest.raises(UsageError, match="no code widths to plan"):
            plan(captured, target_bits=6, settings=chosen)
        with pytest.raises(UsageError, match="no code widths to schedule"):
            analyze(captured, scheme=text, schedule="depth")
    if name == "exact":
        assert measured.quality.kl_nats < 1e-6
    assert (measured.totals.shipped_bytes is not None) == (name == "cachegen")
    assert replace(measured, quality=None) == analyze(captured, scheme=text).measurement


@pytest.fixture(scope="module")
def scored(llama):
    return capture(str(llama), TEXT, continuation=40)


def test_energies_of_the_largest_numbers_are_finite():
    x = values("", 1, 64, mx.bfloat16)
    x[0, 3, 5] = 1e20
    for text in ("group", "mlx:group_size=32", "cachegen", "exact"):
        found = tensor(x, text)
        assert found.signal == pytest.approx(1e40, rel=0.01) and found.error < 1e40
        assert mx.isfinite(found.restored()).all()


def test_numbers_that_would_come_back_infinite_are_refused():
    x = mx.zeros((1, 64, 32), mx.bfloat16)
    x[0, 3], x[0, 4] = 3.38e38, -3.38e38
    with pytest.raises(InputError, match="group would give back numbers that are not finite"):
        tensor(x, "group")
    assert tensor(x, "exact").error == 0


class TestUniform:
    def test_undoing_the_rotation_makes_repeats_alike(self, scored):
        known = analyze(scored, scheme="uniform")
        turned = analyze(replace(scored, loaded=None), scheme="uniform")
        assert known.measurement.keys.coded_bytes < turned.measurement.keys.coded_bytes
        assert known.measurement.values == turned.measurement.values
        assert not [w for w in known.run.warnings if w.code == "rotation-stays"]
        [message] = [w.message for w in turned.run.warnings if w.code == "rotation-stays"]
        assert "4 of 4 cache entries keep their rotary position: there is no model" in message

    def test_error_is_what_was_asked_for(self, scored):
        for error in (0.01, 0.1):
            found = analyze(scored, scheme=f"uniform:error={error}").measurement
            for tensor in found.tensors:
                assert tensor.relative_rms_error == pytest.approx(error, rel=0.1)

    def test_step_is_that_of_all_squares_to_twelve_bits(self):
        """So that another device, which adds up in another order, finds the same."""
        x = values("", 2, 3000, mx.float16)
        own = Uniform(0.0, 0.05, {}).fitted(x, no_rows(3000)).own
        exact = np.sqrt(np.square(np.array(x).astype(np.float64)).mean()) * 0.05 * 12**0.5
        assert own.step.item() == pytest.approx(exact, rel=2**-12)
        mantissa, _ = np.frexp(own.step.item())
        assert (mantissa * 4096).is_integer()
        mean = np.array(x).astype(np.float64).mean(axis=1, keepdims=True)
        np.testing.assert_allclose(np.array(own.mean), mean, atol=2e-3)

    def test_step(self, scored):
        found = analyze(scored, scheme="uniform:step=0.25").measurement
        rms = (sum(t.error_energy for t in found.tensors) / found.totals.elements) ** 0.5
        assert rms == pytest.approx(0.25 / 12**0.5, rel=0.1)

    def test_values_too_large_for_a_step_are_refused(self):
        x = values("", 1, 64, mx.bfloat16)
        x[0, 3, 5] = 3e35
        with pytest.raises(InputError, match="it: its values are too large for a step"):
            tensor(x, "uniform")
        x[0, 3, 5] = float("nan")
        with pytest.raises(InputError, match="NaN"):
            tensor(x, "uniform")

    def test_windows_and_files_without_a_model(self, sliding, tmp_path):
        from cachegen_cli import unpack

        windows = capture(str(sliding), TEXT)
        chosen = Settings(0, 0, scheme="uniform", keep_first=1)
        assert verify(windows, settings=chosen).passed
        pack(windows, tmp_path / "a.cgkv", chosen, with_tokens=False)
        unpack(tmp_path / "a.cgkv", tmp_path / "a.safetensors")
        pack(tmp_path / "a.safetensors", tmp_path / "b.cgkv", chosen)
        one, two = (list(read_layers(Reader.open(tmp_path / f"{n}.cgkv"))) for n in "ab")
        for a, b in zip(one, two, strict=True):
            # quantized twice, the second time with the rotation: an error of 0.05 each
            difference = mx.square((a.keys - b.keys).astype(mx.float32)).sum()
            assert difference < 0.1**2 * mx.square(a.keys.astype(mx.float32)).sum()

    def test_the_same_file_from_run_to_run(self, scored, tmp_path):
        for name in "ab":
            pack(scored, tmp_path / name, Settings(0, 0, scheme="uniform"))
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.parametrize(
        "text", ["uniform:error=0", "uniform:error=2", "uniform:step=-1", "uniform:error=nan"]
    )
    def test_options_that_make_no_sense(self, scored, text):
        with pytest.raises(UsageError, match=r"uniform has no|is not a number"):
            analyze(scored, scheme=text)


def test_options_are_refused_before_anything_runs():
    for text, bits in (("mlx", 7), ("cachegen:bins=1", 4), ("uniform:error=3", 4)):
        with pytest.raises(UsageError):
            analyze("never loaded", scheme=text, bits=bits)


def test_a_scheme_without_widths_shows_none(scored):
    from cachegen_cli import render

    shown = render(sweep(scored, scheme="exact"), "table").splitlines()
    assert any(line.split()[:1] == ["-"] for line in shown)


class TestTargets:
    def test_bits(self, scored, tmp_path):
        found = analyze(scored, scheme="uniform:bits=4").measurement
        assert found.totals.coded_bits_per_element == pytest.approx(4, rel=0.021)
        assert found.settings.options.keys() == {"bits", "error"}
        again = analyze(scored, scheme=found.settings.scheme_text).measurement
        assert again.totals == found.totals
        chosen = Settings(0, 0, scheme="uniform", options={"bits": 4.0})
        packed = pack(scored, tmp_path / "c.cgkv", chosen)
        assert packed.measurement.settings == found.settings
        assert verify(scored, settings=chosen).passed
        with pytest.raises(UsageError, match="on a model's run"):
            pack(tmp_path / "none.safetensors", tmp_path / "d.cgkv", chosen)

    def test_kl(self, scored):
        for target in (1e-4, 1e-5):
            found = analyze(scored, scheme=f"uniform:kl={target}", quality=True).measurement
            assert 0.5 * target < found.quality.kl_nats <= target
        with pytest.raises(UsageError, match="has to measure quality"):
            analyze(scored, scheme="uniform:kl=0.1")

    def test_what_nothing_meets(self, scored):
        with pytest.raises(InputError, match="no step of uniform gives 30 bits"):
            analyze(scored, scheme="uniform:bits=30")
        with pytest.raises(InputError, match="no step of uniform holds a KL"):
            analyze(scored, scheme="uniform:kl=1e-13", quality=True)
        for text in ("uniform:bits=3,kl=1", "uniform:bits=3,step=1", "uniform:kl=0"):
            with pytest.raises(UsageError):
                analyze("never loaded", scheme=text)

    def test_a_target_is_searched_for_once(self, scored, monkeypatch):
        from cachegen_cli import sensitivities

        searches = []
        whole = sensitivities.stepped
        monkeypatch.setattr(sensitivities, "stepped", lambda *a: searches.append(a) or whole(*a))
        chosen = Settings(0, 0, scheme="uniform", options={"bits": 4.0})
        found = sensitivities.sensitivity(scored, settings=chosen)
        assert len(searches) == 1 and found.settings.options.keys() == {"bits", "error"}

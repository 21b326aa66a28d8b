from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cachegen_cli import (
    UsageError,
    cachegen_quant_dequant,
    dequant_codes,
    dequant_codes_batched,
    layer_group_bits,
    quantize_to_codes,
    quantize_to_codes_batched,
)

floats = st.floats(-1000, 1000, width=16)
shapes = st.tuples(st.integers(1, 70), st.integers(1, 5))
matrices = st.one_of(
    arrays(np.float16, shapes, elements=floats),
    arrays(np.float16, shapes, elements=st.sampled_from([-1.0, 0.0, 2.5])),
    st.builds(np.full, shapes, floats, st.just(np.float16)),
)
widths = st.integers(1, 8)
group_sizes = st.integers(1, 64)


def rows(stream) -> np.ndarray:
    codes = np.array(stream.codes).reshape(-1, stream.codes.shape[-1])
    return codes[: stream.n_rows].astype(int)


@given(matrices, widths, group_sizes)
def test_codes_and_parameters_equal_the_reference_exactly(x, bits, group_size):
    stream = quantize_to_codes(mx.array(x), bits, group_size)
    codes, scale, zero = reference.quantize(x, bits, group_size)
    assert (rows(stream) == codes).all()
    assert (np.array(stream.scale)[:, 0] == scale).all()
    assert (np.array(stream.zero)[:, 0] == zero).all()
    assert stream.codes.dtype == stream.scale.dtype == stream.zero.dtype == mx.float32
    assert (stream.n_rows, stream.bits) == (len(x), bits)


@given(matrices, widths, group_sizes)
def test_dequantized_is_within_half_a_step(x, bits, group_size):
    stream = quantize_to_codes(mx.array(x), bits, group_size)
    back = dequant_codes(stream)
    assert back.shape == x.shape and back.dtype == mx.float16
    step = np.repeat(np.array(stream.scale)[:, 0], group_size, axis=0)[: len(x)]
    rounding = np.abs(x.astype(np.float32)) * 2**-10 + 1e-6
    assert (np.abs(np.array(back, np.float32) - x) <= step * 0.5001 + rounding).all()
    assert mx.array_equal(back, cachegen_quant_dequant(mx.array(x), bits, group_size))


@given(st.integers(1, 4), matrices, widths, group_sizes)
def test_batched_equals_single(heads, x, bits, group_size):
    batch = np.stack([np.roll(x, h, axis=0) * np.float16(h + 1) for h in range(heads)])
    stream = quantize_to_codes_batched(mx.array(batch), bits, group_size)
    back = dequant_codes_batched(stream)
    for h in range(heads):
        single = quantize_to_codes(mx.array(batch[h]), bits, group_size)
        for together, alone in zip(stream[:3], single[:3], strict=True):
            assert mx.array_equal(together[h], alone)
        assert mx.array_equal(back[h], dequant_codes(single))


def test_golden_values():
    x = mx.array([[0.0], [1.0], [2.5], [15.0], [7.5], [3.5]])
    stream = quantize_to_codes(x, 4, 4)
    # first group: step 1, 2.5 rounds to even; second: 7.5, 3.5, padded with 3.5, step 4/15
    assert rows(stream).ravel().tolist() == [0, 1, 2, 15, 15, 0]
    assert stream.codes.shape == (2, 4, 1) and stream.codes[1].tolist() == [[15], [0], [0], [0]]
    assert stream.zero.tolist() == [[[0.0]], [[3.5]]]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_every_float_dtype_gives_the_codes_of_its_float32_values(dtype):
    x = mx.random.normal((40, 8), key=mx.random.key(1)).astype(dtype)
    codes = quantize_to_codes(x, 4).codes
    assert mx.array_equal(codes, quantize_to_codes(x.astype(mx.float32), 4).codes)


@pytest.mark.parametrize("bits", [0, 9, -1, 2.5, "4", True, None])
def test_bad_widths(bits):
    with pytest.raises(UsageError, match="code width"):
        quantize_to_codes(mx.zeros((4, 4)), bits)


@pytest.mark.parametrize("group_size", [0, -3, 1.5, None])
def test_bad_group_sizes(group_size):
    with pytest.raises(UsageError, match="group size"):
        quantize_to_codes(mx.zeros((4, 4)), 4, group_size)


@pytest.mark.parametrize("shape", [(4,), (2, 4, 4), (0, 4), (4, 0)])
def test_bad_shapes(shape):
    with pytest.raises(UsageError):
        quantize_to_codes(mx.zeros(shape), 4)


def test_numpy_integers_are_widths():
    assert quantize_to_codes(mx.zeros((4, 4)), np.int64(4)).bits == 4


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [
        ((9, 4), [4, 4, 4, 3, 3, 3, 2, 2, 2]),
        ((10, 8, 3), [8, 8, 8, 7, 7, 7, 7, 6, 6, 6]),
        ((30, 4), [4] * 10 + [3] * 10 + [2] * 10),
        ((5, 4, 2), [4, 4, 3, 3, 3]),  # round(2.5) is 2 in Python
        ((2, 4, 3), [4, 3]),
        ((3, 1), [2, 2, 2]),
        ((0, 4), []),
        ((4, 3, 4), [3, 2, 2, 2]),
    ],
)
def test_layer_group_bits(arguments, bits):
    assert layer_group_bits(*arguments) == bits


@pytest.mark.parametrize("arguments", [(-1, 4), (4, 0), (4, 9), (4, 4, 0)])
def test_impossible_schedules(arguments):
    with pytest.raises(UsageError):
        layer_group_bits(*arguments)

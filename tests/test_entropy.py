from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from test_quantize import group_sizes, matrices, rows, widths

from cachegen_cli import (
    CodeStream,
    InputError,
    UsageError,
    entropy_coded_bytes,
    entropy_coded_bytes_batched,
    fixed_width_bytes,
    fixed_width_bytes_batched,
    quantize_to_codes,
    quantize_to_codes_batched,
    symbol_entropy_bits,
    token_delta,
    token_delta_batched,
)
from cachegen_cli.entropy import channel_histograms, estimates

WAYS = [(delta, channel) for delta in (False, True) for channel in (False, True)]


@given(matrices, widths, group_sizes)
def test_sizes_equal_the_reference(x, bits, group_size):
    stream = quantize_to_codes(mx.array(x), bits, group_size)
    codes = reference.quantize(x, bits, group_size)[0]
    fixed = fixed_width_bytes(stream)
    assert fixed == reference.fixed_bytes(*x.shape, bits, group_size)
    for delta, channel in WAYS:
        found = entropy_coded_bytes(stream, delta, channel)
        expected = reference.entropy_bytes(codes, bits, group_size, delta, channel)
        assert abs(found - expected) <= 1
        assert found <= fixed


@given(st.integers(1, 4), matrices, widths, group_sizes)
def test_batched_equals_single(heads, x, bits, group_size):
    batch = np.stack([np.roll(x, h, axis=0) * np.float16(h + 1) for h in range(heads)])
    together = quantize_to_codes_batched(mx.array(batch), bits, group_size)
    alone = [quantize_to_codes(mx.array(b), bits, group_size) for b in batch]
    assert fixed_width_bytes_batched(together) == [fixed_width_bytes(s) for s in alone]
    for way in WAYS:
        expected = [entropy_coded_bytes(s, *way) for s in alone]
        assert entropy_coded_bytes_batched(together, *way) == expected


@given(matrices, widths, group_sizes)
def test_prefix_sum_of_token_delta_gives_the_codes(x, bits, group_size):
    codes = mx.array(rows(quantize_to_codes(mx.array(x), bits, group_size)))
    assert mx.array_equal(mx.cumsum(token_delta(codes), axis=0), codes)
    batch = mx.stack([codes, codes[::-1]])
    assert mx.array_equal(token_delta_batched(batch)[1], token_delta(codes[::-1]))


def test_token_delta_golden():
    assert token_delta(mx.array([[3, 5], [4, 1], [4, 9]])).tolist() == [[3, 5], [1, -4], [0, 8]]
    assert token_delta(mx.array([[3, 5]])).tolist() == [[3, 5]]
    assert token_delta(mx.zeros((0, 5))).shape == (0, 5)


@pytest.mark.parametrize("k", range(9))
def test_entropy_of_uniform_symbols(k):
    assert symbol_entropy_bits(mx.array(list(range(2**k)) * 3)) == pytest.approx(k, abs=1e-12)


def test_entropy_golden():
    assert symbol_entropy_bits(mx.array([7.0] * 50)) == 0
    assert symbol_entropy_bits(mx.array([-1, -1, 0, 5])) == pytest.approx(1.5)
    assert symbol_entropy_bits(mx.array([])) == 0


def test_two_constant_channels_cost_one_bit_pooled_and_none_by_channel():
    codes = mx.broadcast_to(mx.array([5.0, 9.0]), (1, 32, 2))
    stream = CodeStream(codes, mx.ones((1, 1, 2)), mx.zeros((1, 1, 2)), 32, 4)
    assert entropy_coded_bytes(stream, use_delta=False, per_channel=True) == 2 * 4
    assert entropy_coded_bytes(stream, use_delta=False, per_channel=False) == 64 // 8 + 2 * 4


def test_uniform_codes_cost_exactly_their_width():
    codes = mx.array(np.tile(np.arange(8.0), 12).reshape(1, 96, 1))
    stream = CodeStream(codes, mx.ones((1, 1, 1)), mx.zeros((1, 1, 1)), 96, 3)
    assert entropy_coded_bytes(stream, use_delta=False) == fixed_width_bytes(stream) == 36 + 4


@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([1, 2, 31, 300, 20_000]),
    st.integers(0, 2**32 - 1),
)
def test_histograms_count_every_code_and_delta(bits, heads, dim, tokens, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (heads, dim, tokens), np.uint8)
    found = channel_histograms(codes, bits)
    deltas = np.diff(codes.astype(int), axis=-1, prepend=0) + 2**bits - 1
    assert found.raw.shape == (heads, dim, 2**bits)
    assert found.delta.shape == (heads, dim, 2 ** (bits + 1) - 1)
    for h in range(heads):
        for d in range(dim):
            assert (found.raw[h, d] == np.bincount(codes[h, d], minlength=2**bits)).all()
            expected = np.bincount(deltas[h, d], minlength=2 ** (bits + 1) - 1)
            assert (found.delta[h, d] == expected).all()


def test_no_tokens_cost_only_their_parameters():
    for shape in ((2, 0, 5), (2, 3, 0)):
        nothing = estimates(channel_histograms(np.zeros(shape, np.uint8), 4), 7)
        assert nothing == ([7, 7],) * 4
    empty = channel_histograms(np.zeros((2, 3, 0), np.uint8), 4)
    assert estimates(empty, 12) == ([12, 12],) * 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_non_finite_values_are_found_when_the_codes_are_read(bad, dtype):
    x = np.ones((70, 3), np.float32)
    x[68, 1] = bad  # in the ragged last group
    stream = quantize_to_codes(mx.array(x).astype(dtype), 4)
    with pytest.raises(InputError, match="NaN or infinite"):
        entropy_coded_bytes(stream)


def test_wrong_rank():
    stream = quantize_to_codes(mx.zeros((4, 4)), 4)
    with pytest.raises(UsageError, match="expected codes"):
        entropy_coded_bytes_batched(stream)

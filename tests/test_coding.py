from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachegen_cli import InputError, UsageError
from cachegen_cli.coding import choose, decode, encode
from cachegen_cli.coding.blocks import block_length, join, split
from cachegen_cli.coding.counts import host_counts, segment_blocks
from cachegen_cli.coding.framing import HEADER_BYTES
from cachegen_cli.coding.models import MODELS
from cachegen_cli.coding.ranges import code_length
from cachegen_cli.coding.sections import Section, read_parameters, write_parameters
from cachegen_cli.coding.shapes import tables
from cachegen_cli.coding.statistics import statistics, symbols_of
from cachegen_cli.coding.tables import TableSet, decode_tables, frequencies, weights


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("model", ["pooled", "channel", "shape", "context"])
def test_bounds_hold_for_millions_of_symbols(bits, model):
    """The coder loses a little at every symbol."""
    rng = np.random.default_rng(bits)
    codes = np.rint(rng.normal(2**bits / 2, 2**bits / 8, (256, 6000)))
    codes = np.clip(codes, 0, 2**bits - 1).astype(np.uint8)
    choice = choose(codes, bits, model=model)
    length = len(encode(codes, bits, choice))
    assert length <= choice.predicted_bytes <= length * 1.001 + 24


def codes_of(kind: str, bits: int, channels: int, tokens: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    top = 2**bits - 1
    shape = (channels, tokens)
    if kind == "constant":
        found = np.full(shape, top)
    elif kind == "uniform":
        found = rng.integers(0, top + 1, shape)
    elif kind == "normal":
        found = np.rint(rng.normal(top / 2, top / 6 + 0.1, shape))
    elif kind == "walk":
        found = np.rint(rng.normal(0, 0.4, shape).cumsum(axis=1) + top / 2)
    else:  # two symbols at the far ends
        found = rng.choice([0, top], shape, p=[0.9, 0.1])
    return np.clip(found, 0, top).astype(np.uint8)


KINDS = ("constant", "uniform", "normal", "walk", "ends")


@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([0, 1, 2, 31, 33, 65, 300]),
    st.sampled_from(["auto", *MODELS]),
    st.sampled_from(["auto", "on", "off"]),
    st.integers(0, 99),
)
def test_decode_gives_the_codes_back(kind, bits, channels, tokens, model, delta, seed):
    codes = codes_of(kind, bits, channels, tokens, seed)
    try:
        choice = choose(codes, bits, delta=delta, model=model)
    except UsageError:
        assert model == "context" or not tokens
        return
    data = encode(codes, bits, choice=choice)
    back = decode(data)
    assert back.dtype == np.uint8 and (back == codes).all() and back.shape == codes.shape
    assert len(data) <= choice.predicted_bytes
    # two range-coded streams, 12 bytes each, and 0.1 %
    assert choice.predicted_bytes <= len(data) * 1.001 + 24
    if model != "auto":
        assert choice.fit.name == model
    if delta != "auto" and choice.fit.name != "plain":
        assert choice.fit.delta == (delta == "on")


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_no_codes(bits):
    for shape in ((0, 0), (5, 0), (0, 5)):
        empty = np.zeros(shape, np.uint8)
        assert decode(encode(empty, bits)).shape == shape


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("model", ["pooled", "channel", "shape", "context"])
@pytest.mark.parametrize("kind", ["uniform", "normal", "walk"])
def test_payload_is_near_the_information_under_the_tables(kind, model, delta):
    codes = codes_of(kind, 4, 24, 3000)
    choice = choose(codes, 4, model=model, delta="on" if delta else "off")
    fit = choice.fit
    payload = fit.payload(symbols_of(codes, delta) - fit.low)
    stats = statistics(host_counts(codes[None], 4))[delta]
    if model == "shape":
        rows = tables(fit.shape, fit.location, fit.edge, fit.n_symbols)
        bits = code_length(stats.channel, rows)
    else:
        rows = frequencies(decode_tables(fit.tables(), len(fit.table_set.rows), fit.n_symbols,
                                         model == "context"))  # fmt: skip
        if model == "pooled":
            bits = code_length(stats.channel.sum(axis=0)[None], rows)
        elif model == "channel":
            bits = code_length(stats.channel, rows[1:])
        else:
            bits = code_length(stats.first, rows[0]) + code_length(stats.pairs, rows[1:])
    assert bits - 8 <= 8 * len(payload) <= 1.001 * bits + 64


def test_the_smallest_model_is_taken():
    walk = codes_of("walk", 4, 32, 2000)
    choice = choose(walk, 4)
    assert (choice.fit.name, choice.fit.delta) == ("context", False) or choice.fit.delta
    for model in MODELS:
        for delta in ("on", "off"):
            other = choose(walk, 4, model=model, delta=delta)
            assert choice.predicted_bytes <= other.predicted_bytes
    noise = codes_of("uniform", 4, 8, 64)
    assert choose(noise, 4).fit.name == "plain"
    assert len(encode(noise, 4)) == HEADER_BYTES + noise.size // 2


def test_pairs_are_counted_within_segments():
    codes = codes_of("uniform", 2, 3, 3 * 1500 + 7)
    raw, delta = statistics(host_counts(codes[None], 2))
    for stats, symbols in ((raw, codes.astype(int)), (delta, symbols_of(codes, True) + 0)):
        n, tokens = stats.n_symbols, codes.shape[1]
        k = block_length(n)
        length = k * segment_blocks(3, tokens, n)
        pairs, first = np.zeros((n, n), int), np.zeros(n, int)
        for row in symbols - stats.low:
            for t, s in enumerate(row):
                if t % length or t >= tokens // k * k:
                    pairs[row[t - 1], s] += 1
                else:
                    first[s] += 1
        assert (stats.pairs == pairs).all() and (stats.first == first).all()


@given(st.integers(2, 300), st.integers(0, 20), st.integers(1, 4))
def test_blocks_survive(n, tokens, channels):
    symbols = np.random.default_rng(n).integers(0, n, (channels, tokens))
    blocks, rest = split(symbols, n)
    assert n ** block_length(n) <= 256 or block_length(n) == 1
    assert blocks.max(initial=0) < max(256, n)
    assert (join(blocks, rest, n) == symbols).all()


@given(st.integers(1, 30), st.integers(1, 40), st.booleans(), st.integers(0, 9))
def test_tables_survive(n, n_symbols, gains, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 10 ** rng.integers(1, 7), (n, n_symbols)) * rng.integers(
        0, 2, (n, n_symbols)
    )
    rows = weights(counts)
    assert ((rows > 0) == (counts > 0)).all()
    table_set = TableSet(rows, gains)
    data = table_set.encode()
    assert len(data) <= table_set.predicted_bytes
    assert (decode_tables(data, n, n_symbols, gains) == rows).all()


def test_an_entry_costs_about_two_bits():
    codes = codes_of("normal", 4, 256, 1000)
    rows = weights(statistics(host_counts(codes[None], 4))[0].channel)
    bits = 8 * TableSet(np.concatenate([rows[:1], rows]), False).predicted_bytes / rows.size
    assert 0.5 < bits < 3


def test_shape_tables_are_pinned():
    found = tables(np.array([3, 60]), np.array([100, 20]), 2, 6)
    assert found.tolist() == SHAPES


def test_streams_are_pinned():
    """Golden bytes: what one machine writes, any other reads."""
    found = {}
    for kind in ("normal", "walk", "ends"):
        for model in MODELS:
            for delta in ("off", "on"):
                if model == "plain" and delta == "on":
                    continue
                codes = (np.arange(7 * 400).reshape(7, 400) * SEEDS[kind] >> 7) % 16
                data = encode(codes.astype(np.uint8), 4, model=model, delta=delta)
                found[kind, model, delta] = hashlib.sha256(data).hexdigest()[:16]
    assert found == GOLDEN


def test_a_stream_to_the_byte():
    codes = np.array([[0, 1, 1, 2], [2, 2, 1, 0]], np.uint8)
    assert encode(codes, 2, model="plain").hex() == PLAIN_HEX
    assert encode(codes, 2, model="pooled", delta="off").hex() == POOLED_HEX


def test_every_damage_is_an_error_or_harmless():
    rng = np.random.default_rng(3)
    for kind in ("normal", "walk"):
        for model in MODELS:
            codes = codes_of(kind, 3, 9, 200)
            whole = encode(codes, 3, model=model)
            for trial in range(120):
                data = bytearray(whole)
                if trial % 3 == 0:
                    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
                elif trial % 3 == 1:
                    del data[rng.integers(len(data)) :]
                else:
                    at = rng.integers(HEADER_BYTES)
                    data[at : at + 4] = rng.integers(0, 256, 4, np.uint8).tobytes()
                try:
                    back = decode(bytes(data))
                except InputError as error:
                    assert "cannot be decoded" in error.message
                else:
                    assert back.dtype == np.uint8 and back.size < 1 << 26


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("number", range(5))
def test_streams_without_symbols_are_refused(number, n):
    head = struct.pack("<BBBBIIhHII", 1, number, 0, 4, 128, 1 << 24, 0, n, 3, 0)
    with pytest.raises(InputError, match="no symbols"):
        decode(head + b"\0\0\0")


@pytest.mark.parametrize("bad", [np.zeros(4, np.uint8), np.zeros((2, 2), np.int32)])
def test_wrong_arrays(bad):
    with pytest.raises(UsageError):
        encode(bad, 4)


@given(st.integers(1, 3), st.integers(0, 5), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_sections_survive(heads, groups, dim, kept, wide):
    rng = np.random.default_rng(groups)
    scale, zero = (rng.normal(size=(heads, groups, dim)).astype(np.float32) for _ in "ab")
    if wide and groups:
        zero[0, -1, 0] = 1e30
    patterns = rng.integers(0, 1 << 16, (heads, kept, dim)).astype(np.uint16)
    mask = np.zeros((heads, groups), bool)
    mask[:1, -1:] = wide
    parameters, flag = write_parameters(scale, zero, mask)
    whole = Section(b"stream", parameters, patterns.astype("<u2").tobytes(), flag)
    section = Section.from_bytes(whole.to_bytes())
    assert section.stream == b"stream"
    found = read_parameters(section.parameters, section.wide, heads, groups, dim)
    assert section.wide == bool(wide and groups)
    for got, given_ in zip(found, (scale, zero), strict=True):
        with np.errstate(over="ignore"):
            expected = given_.astype(np.float16).astype(np.float32)
        if wide and groups:
            expected[0, -1] = given_[0, -1]
        assert (got == expected).all()
    assert (section.read_kept(heads, kept, dim) == patterns).all()
    size = heads * groups * dim * 4
    if section.wide:
        size += dim * 4 + -(-heads * groups // 8)
    assert len(section.parameters) == size
    with pytest.raises(InputError):
        read_parameters(section.parameters, section.wide, heads, groups + 1, dim)
    with pytest.raises(InputError):
        section.read_kept(heads, kept + 1, dim)


@pytest.mark.parametrize("cut", [0, 3, 15, 20])
def test_cut_sections(cut):
    whole = Section(b"abcdef", b"gh", b"", False).to_bytes()
    with pytest.raises(InputError, match="section"):
        Section.from_bytes(whole[:cut])


SEEDS = {"normal": 7919, "walk": 41, "ends": 104729}
SHAPES = [
    [226856, 185388, 14107850, 120220, 1096, 225286],
    [16621391, 14107890, 4776410, 571796, 25334, 555908],
]
PLAIN_HEX = "010400020200000004000000000004000000000002000000941a"
POOLED_HEX = "0100000202000000040000000000030007000000040000000400000004fddbbb5c2c2f"
GOLDEN = {
    ("ends", "channel", "off"): "cb25e2942b0f061b",
    ("ends", "channel", "on"): "0e982ed78575c3a8",
    ("ends", "context", "off"): "2c7fd9b9a534aad0",
    ("ends", "context", "on"): "a3513ea16fb3c1e4",
    ("ends", "plain", "off"): "68f9ebbce42cac88",
    ("ends", "pooled", "off"): "8d5e60498da62dd2",
    ("ends", "pooled", "on"): "2cc8767f968d4978",
    ("ends", "shape", "off"): "a9874a895a2a6e88",
    ("ends", "shape", "on"): "09f8d8361e6bfb7b",
    ("normal", "channel", "off"): "cf82f43968eb5acc",
    ("normal", "channel", "on"): "751322d9d9328429",
    ("normal", "context", "off"): "0283d34c78ad1833",
    ("normal", "context", "on"): "a415d7b11ebead42",
    ("normal", "plain", "off"): "3a827078d4a9426c",
    ("normal", "pooled", "off"): "9d94d7b4c73989df",
    ("normal", "pooled", "on"): "8d65f6554d931001",
    ("normal", "shape", "off"): "47768186497c7843",
    ("normal", "shape", "on"): "1487360829b5b4b9",
    ("walk", "channel", "off"): "314e6f5e7d534fdf",
    ("walk", "channel", "on"): "abd4bf065f13db4d",
    ("walk", "context", "off"): "6767fd08db946914",
    ("walk", "context", "on"): "4a4cd2cede5e1c80",
    ("walk", "plain", "off"): "b6db0411ac7e00b4",
    ("walk", "pooled", "off"): "ecaba9f6cf6d4acc",
    ("walk", "pooled", "on"): "8c84756ea814280a",
    ("walk", "shape", "off"): "e3dc0a04b287b7b8",
    ("walk", "shape", "on"): "07d71c3c0931f0be",
}

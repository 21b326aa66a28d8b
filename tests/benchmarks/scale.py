"""A cache shaped like Llama-3.1-8B's, and how long its analysis takes on MLX's device.

As a script (``uv run python tests/benchmarks/scale.py``) it prints a row for each size and
width; with ``--model`` an 8B-shaped model of random weights makes the cache, so that its
prefill stands beside.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from cachegen_cli.device import device_name, mx, on_cpu

from cachegen_cli.analysis import analyze  # isort: skip
from cachegen_cli.captures import Capture
from cachegen_cli.kvcache import LayerKV
from cachegen_cli.results.run import ModelInfo, PromptInfo

sys.path.insert(0, str(Path(__file__).parents[1]))  # where tests find it anyway
from made import layer

HEADS, DIM, LAYERS = 8, 128, 32
SIZES = (2048, 8192, 16384, 32768)


def layer_of(tokens: int, place: int = 0) -> LayerKV:
    """Keys and values, float16 [8, tokens, 128]."""
    return layer(tokens, HEADS, DIM, place)


def capture_of(layers: list[LayerKV]) -> Capture:
    """The layers as if a model had just left them."""
    tokens = layers[0].tokens_seen
    return Capture(
        layers=layers,
        skipped=(),
        model=ModelInfo("synthetic", "made", len(layers), HEADS, DIM, "float16", "float16"),
        prompt=PromptInfo("made", tokens, "", tokens, False, 0),
        notices=(),
        timing={},
        tokens=(),
        metadata={},
    )


def elements(capture: Capture) -> int:
    """Numbers in all keys and values."""
    return sum(x.size for kv in capture.layers for x in (kv.keys, kv.values))


def seconds_of(capture: Capture, bits: int, rounds: int = 2) -> tuple[float, dict[str, float]]:
    """The best time of an analysis, and where it went."""
    best, timing = float("inf"), {}
    for _ in range(rounds):
        started = time.perf_counter()
        result = analyze(capture, bits=bits)
        if (took := time.perf_counter() - started) < best:
            best, timing = took, result.run.timing
    return best, timing


def peak_of(capture: Capture, bits: int) -> float:
    """MLX's memory beyond the cache at the peak, by that of one tensor in float32."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    analyze(capture, bits=bits)
    return (mx.get_peak_memory() - before) / (4 * capture.layers[0].keys.size)


def random_model():
    """A llama of 8B's shape with random weights in bfloat16."""
    from mlx.utils import tree_map
    from mlx_lm.models.llama import Model, ModelArgs

    network = Model(
        ModelArgs("llama", 4096, LAYERS, 14336, 32, 1e-5, 128256, num_key_value_heads=HEADS)
    )
    made = tree_map(lambda x: (mx.random.normal(x.shape) * 0.02).astype(mx.bfloat16),
                    network.parameters())  # fmt: skip
    network.update(made)
    mx.eval(network.parameters())
    return network


def prefilled(network, tokens: int) -> tuple[list[LayerKV], float]:
    """The layers after a prompt of random tokens, and how long its second reading took."""
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache

    from cachegen_cli.kvcache import read_cache

    prompt = mx.random.randint(0, 128256, (tokens,))
    for _ in range(2):
        cache = make_prompt_cache(network)
        started = time.perf_counter()
        for _ in generate_step(prompt, network, max_tokens=0, prompt_cache=cache):
            pass
        mx.eval([entry.state for entry in cache])
        took = time.perf_counter() - started
    return read_cache(cache, mx.bfloat16, free=True)[0], took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default=",".join(map(str, SIZES)))
    parser.add_argument("--bits", default="2,4,8")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--model", action="store_true")
    given = parser.parse_args()
    network = random_model() if given.model else None
    print(f"{device_name()}, {'CPU' if on_cpu() else 'GPU'}; {given.layers} layers of [8, N, 128]")
    print("tokens  bits  seconds  ns/element  quantize  count  code  peak/tensor  prefill")
    for tokens in map(int, given.tokens.split(",")):
        prefill = 0.0
        if network is None:
            layers = [layer_of(tokens, place) for place in range(given.layers)]
        else:
            layers, prefill = prefilled(network, tokens)
        capture = capture_of(layers)
        for bits in map(int, given.bits.split(",")):
            took, timing = seconds_of(capture, bits)
            stages = "  ".join(
                f"{timing[f'{name}_seconds']:.3f}" for name in ("quantize", "count", "code")
            )
            print(
                f"{tokens:6}  {bits:4}  {took:7.3f}  {1e9 * took / elements(capture):10.3f}  "
                f"{stages}  {peak_of(capture, bits):11.2f}  {prefill:7.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import rope_utils
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import _get_classes
from tiny import LLAMA, SLIDING

from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.kvcache import LayerKV, read_cache, read_entry
from cachegen_cli.rope import Rotary, _agrees, _described, positions_of, rotaries

HEADS, DIM, TOKENS = 2, 16, 12
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SU = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1 + k / 4 for k in range(8)]}

MODULES = {
    "plain": nn.RoPE(DIM),
    "traditional": nn.RoPE(DIM, traditional=True, base=500000.0),
    "scaled": nn.RoPE(DIM, scale=0.125),
    "partial": nn.RoPE(DIM // 2),
    "partial, traditional, scaled": nn.RoPE(DIM // 2, traditional=True, scale=0.25),
    "su": rope_utils.SuScaledRoPE(
        DIM, max_position_embeddings=4096, original_max_position_embeddings=512,
        long_factor=SU["long_factor"],
    ),
    "su, partial": rope_utils.SuScaledRoPE(DIM // 2, long_factor=2.0, long_mscale=1.3),
    "llama3": rope_utils.Llama3RoPE(DIM, base=500000.0, scaling_config=LLAMA3),
    "llama3, traditional": rope_utils.Llama3RoPE(DIM, traditional=True, scaling_config=LLAMA3),
    "yarn": rope_utils.YarnRoPE(DIM, scaling_factor=32.0, original_max_position_embeddings=64),
    "yarn, partial, traditional": rope_utils.YarnRoPE(DIM // 2, True, scaling_factor=4.0),
    "yarn without a factor": rope_utils.YarnRoPE(
        DIM, scaling_factor=4.0, mscale=1, mscale_all_dim=1
    ),
    "proportional": rope_utils.ProportionalRoPE(DIM, DIM // 4, factor=8.0),
    "proportional, traditional": rope_utils.ProportionalRoPE(DIM, DIM // 2, traditional=True),
    "dynamic": rope_utils.DynamicNTKScalingRoPE(DIM, 1 << 21, False, 10000.0, 2.0),
    "mrope": rope_utils.initialize_rope(
        DIM, 10000.0, False, {"type": "mrope", "mrope_section": [2, 3, 3]}
    ),
}  # fmt: skip
OFFSETS = (0, 1000, 1_000_000)


def entry_of(index: int, entry) -> LayerKV:
    [found] = read_entry(index, entry, mx.float32)
    return found


def looked(network, cache) -> list:
    """How each analysed entry's keys were rotated."""
    return list(rotaries(network, read_cache(cache, mx.float32)[0]).values())


def noise(*shape: int, seed: int = 1) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def error(found: mx.array, wanted: mx.array) -> float:
    """Of the largest magnitude."""
    return (mx.abs(found - wanted).max() / mx.abs(wanted).max()).item()


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", MODULES)
def test_redo_is_the_module_and_undo_its_inverse(name, offset):
    module, x = MODULES[name], noise(HEADS, TOKENS, DIM)
    rotary, positions = _described(module), range(offset, offset + TOKENS)
    redone = rotary.redo(x, positions)
    assert error(redone, module(x[None], offset=offset)[0]) <= 1e-6
    assert error(rotary.undo(redone, positions), x) <= 1e-6
    assert offset == 0 or error(redone, x) > 0.1


@pytest.mark.parametrize("name", MODULES)
def test_scores_of_redone_keys_are_the_original_ones(name):
    module = MODULES[name]
    rotary, positions = _described(module), np.arange(500, 500 + TOKENS)
    queries = module(noise(1, HEADS, TOKENS, DIM, seed=2), offset=500)[0]
    keys = module(noise(1, HEADS, TOKENS, DIM), offset=500)[0]
    redone = rotary.redo(rotary.undo(keys, positions), positions)
    scores = queries @ keys.transpose(0, 2, 1)
    assert error(queries @ redone.transpose(0, 2, 1), scores) <= 1e-5


@pytest.mark.parametrize("name", MODULES)
def test_json_holds_the_rotation_exactly(name):
    rotary = _described(MODULES[name])
    text = json.dumps(rotary.to_json(), allow_nan=False)
    assert Rotary.from_json(json.loads(text)) == rotary
    assert len(text) <= 40 + 24 * DIM / 2
    table = getattr(MODULES[name], "_freqs", None)
    if table is not None:
        assert mx.array_equal(mx.array(rotary.freqs, dtype=mx.float32), table)


@pytest.mark.parametrize(
    "data",
    [
        {"dims": 16},
        {"dims": 15, "base": 1e4},
        {"dims": -2, "base": 1e4},
        {"dims": 16.0, "base": 1e4},
        {"dims": 16, "base": -1.0},
        {"dims": 16, "base": "ten"},
        {"dims": 16, "base": float("nan")},
        {"dims": 4, "freqs": [1.0]},
        {"dims": 4, "freqs": [1.0, float("nan")]},
        {"dims": 4, "freqs": [1.0, "many"]},
        {"dims": 4, "freqs": []},
        {"dims": 4, "freqs": 7},
        {"dims": 4, "freqs": [1.0, 2.0], "base": 1e4},
        {"dims": 16, "base": 1e4, "factor": 0},
        {"dims": 16, "base": 1e4, "scale": 10**400},
        {"dims": 16, "base": 1e4, "traditional": 1},
        {"dims": 16, "base": 1e4, "more": 1},
        {"factor": 2.0},
        [],
        [1],
        None,
    ],
)
def test_json_of_no_rotation_is_refused(data):
    if data == []:
        assert Rotary.from_json(dict(data)) == Rotary()
        return
    with pytest.raises(InputError):
        Rotary.from_json(data)


def test_no_rotation_is_the_identity_and_takes_no_room():
    x = noise(HEADS, TOKENS, DIM).astype(mx.float16)
    assert mx.array_equal(Rotary().undo(x, range(TOKENS)), x.astype(mx.float32))
    assert Rotary().redo(x, range(TOKENS)).dtype == mx.float32
    assert Rotary().to_json() == {} and Rotary.from_json({}) == Rotary()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_keys_of_any_dtype_become_float32(dtype):
    rotary, x = Rotary(DIM, base=1e4, factor=1.5), noise(HEADS, TOKENS, DIM).astype(dtype)
    for found in (rotary.undo(x, range(TOKENS)), rotary.redo(x, range(TOKENS))):
        assert found.dtype == mx.float32 and found.shape == x.shape


def test_rows_are_rotated_wherever_they_are():
    rotary, x = _described(MODULES["yarn"]), noise(HEADS, TOKENS, DIM)
    positions = [7, 0, 3, 900000, 2, 2, 50, 51, 1, 99, 4, 12]
    found = rotary.redo(x, positions)
    for row, position in enumerate(positions):
        alone = MODULES["yarn"](x[None, :, row : row + 1], offset=position)[0, :, 0]
        assert mx.array_equal(found[:, row], alone)


@pytest.mark.parametrize(
    ("shape", "tokens", "dims"), [((2, 3, 8), 4, 8), ((2, 3, 8), 3, 16), ((1, 2, 3, 8), 3, 8)]
)
def test_shapes_that_do_not_fit_are_refused(shape, tokens, dims):
    with pytest.raises(UsageError):
        Rotary(dims, base=1e4).undo(mx.zeros(shape), range(tokens))


def test_no_rows_stay_no_rows():
    assert Rotary(8, base=1e4).undo(mx.zeros((2, 0, 8)), []).shape == (2, 0, 8)


def test_positions_of_growing_and_sliding_entries():
    assert positions_of(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert positions_of(5, 5, 8, 2).tolist() == [0, 1, 2, 3, 4]
    assert positions_of(4, 9, 4).tolist() == [5, 6, 7, 8]
    assert positions_of(5, 9, 5, 2).tolist() == [0, 1, 6, 7, 8]
    for tokens, seen, window in ((5, 4, 0), (5, 9, 0)):
        with pytest.raises(UsageError):
            positions_of(tokens, seen, window)


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize(
    "plan", [[40], [16, 16, 8], [1] * 40, [20] + [1] * 20, [39, 1], [10, 1, 1, 20, 1, 7]]
)
def test_a_window_with_sinks_gives_the_raw_keys(keep, plan):
    module, raw = MODULES["llama3"], noise(HEADS, 40, DIM)
    cache = RotatingKVCache(max_size=16, keep=keep)
    start = 0
    for step in plan:
        rows = raw[None, :, start : start + step]
        cache.update_and_fetch(module(rows, offset=cache.offset), rows)
        start += step
    kv = entry_of(0, cache)
    positions = positions_of(kv.keys.shape[1], kv.tokens_seen, kv.window, kv.sinks)
    assert len(positions) == 16
    found = _described(module).undo(kv.keys, positions)
    assert error(found, raw[:, mx.array(positions)]) <= 1e-5
    assert mx.array_equal(kv.values, raw[:, mx.array(positions)])


def network_of(config: dict, dtype: mx.Dtype = mx.float32):
    model_class, arguments = _get_classes(config)
    mx.random.seed(7)
    network = model_class(arguments.from_dict(config))
    network.set_dtype(dtype)
    return network


def filled(network, tokens: int = 40, cache=None):
    cache = cache or make_prompt_cache(network)
    for start in range(0, tokens, 16):  # in steps, as a prefill is
        ids = [(7 * k) % 250 + 1 for k in range(start, min(start + 16, tokens))]
        mx.eval(network(mx.array([ids]), cache=cache))
    return cache


CONFIGS = {
    "llama": LLAMA,
    "llama, traditional": LLAMA | {"rope_traditional": True},
    "sliding window": SLIDING,
    "llama3": LLAMA | {"rope_scaling": LLAMA3},
    "linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "yarn": LLAMA | {"rope_scaling": YARN},
    "qwen2, yarn": LLAMA | {"model_type": "qwen2", "rope_scaling": YARN},
    "qwen3": LLAMA | {"model_type": "qwen3"},
    "phi3, longrope": LLAMA
    | {"model_type": "phi3", "rope_scaling": SU, "original_max_position_embeddings": 64},
    "phi3, partial": LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5},
    "gemma2": LLAMA | {"model_type": "gemma2"},
    "gemma3": LLAMA
    | {"model_type": "gemma3_text", "sliding_window": 24, "sliding_window_pattern": 2},
    "smollm3": LLAMA | {"model_type": "smollm3"},
    "cohere2": LLAMA
    | {"model_type": "cohere2", "sliding_window": 24, "sliding_window_pattern": 2},
    "stablelm, partial": LLAMA
    | {
        "model_type": "stablelm", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25,
        "use_qkv_bias": False, "rope_scaling": None,
    },
    "gpt_oss": LLAMA
    | {
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 24, "rope_scaling": YARN | {"rope_type": "yarn", "factor": 32.0},
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}  # fmt: skip
UNROTATED = {"smollm3": [3], "cohere2": [1, 3]}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_rotations_of_models_give_the_keys_that_were_rotated(name, dtype, monkeypatch):
    if name == "gpt_oss" and dtype != mx.float32 and mx.default_device().type == mx.DeviceType.cpu:
        pytest.skip("MLX gathers matrices on the CPU in float32 only")
    network = network_of(CONFIGS[name], dtype)
    raw: dict[int, list[mx.array]] = {}
    heads = network.layers[0].self_attn
    heads = getattr(heads, "n_kv_heads", None) or getattr(heads, "num_key_value_heads", 2)
    assert heads == 2  # and there are 4 query heads
    for rope in {type(layer.self_attn.rope) for layer in network.layers}:
        called = rope.__call__

        def noted(self, x, *args, called=called, **options):
            if x.shape[1] == 2:
                raw.setdefault(id(self), []).append(x)
            return called(self, x, *args, **options)

        monkeypatch.setattr(rope, "__call__", noted)
    cache = filled(network)
    monkeypatch.undo()
    found = looked(network, cache)
    assert not any(isinstance(rotary, str) for rotary in found), found
    unrotated = [index for index, rotary in enumerate(found) if rotary == Rotary()]
    assert unrotated == UNROTATED.get(name, [])
    for index, (entry, rotary) in enumerate(zip(cache, found, strict=True)):
        kv = entry_of(index, entry)
        positions = positions_of(kv.keys.shape[1], kv.tokens_seen, kv.window, kv.sinks)
        assert len(positions) == (24 if kv.window else 40)
        parts = raw.get(id(network.layers[index].self_attn.rope))
        if rotary == Rotary() and parts is None:  # its module is there and is not called
            continue
        wanted = mx.concatenate(parts, axis=2)[0][:, mx.array(positions)].astype(mx.float32)
        bound = 1e-5 if dtype == mx.float32 else 1e-2
        assert error(rotary.undo(kv.keys, positions), wanted) <= bound
        back = rotary.redo(rotary.undo(kv.keys, positions), positions)
        assert error(back, kv.keys) <= 1e-6


@pytest.mark.parametrize("sinks", [False, True], ids=["growing", "window"])
def test_first_layer_of_llama_by_hand(sinks):
    network = network_of(LLAMA)
    cache = filled(network, cache=[RotatingKVCache(16, keep=4) for _ in range(4)] * sinks)
    layer = network.model.layers[0]
    ids = mx.array([(7 * k) % 250 + 1 for k in range(40)])
    raw = layer.self_attn.k_proj(layer.input_layernorm(network.model.embed_tokens(ids)))
    raw = raw.reshape(40, 2, 16).transpose(1, 0, 2)
    rotary, kv = looked(network, cache)[0], entry_of(0, cache[0])
    positions = positions_of(kv.keys.shape[1], kv.tokens_seen, kv.window, kv.sinks)
    assert positions.tolist() == ([*range(4), *range(28, 40)] if sinks else [*range(40)])
    assert error(rotary.undo(kv.keys, positions), raw[:, mx.array(positions)]) <= 1e-5


MLA = LLAMA | {
    "model_type": "deepseek_v3", "moe_intermediate_size": 32, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 4, "routed_scaling_factor": 1.0,
    "kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "qk_nope_head_dim": 16, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_layer_freq": 1, "first_k_dense_replace": 4,
}  # fmt: skip
# half of the channels of a head are not rotated, and they are the leading ones
HALVES = MLA | {"model_type": "deepseek_v2", "topk_method": "gready", "rope_scaling": YARN}
OWN = LLAMA | {"model_type": "nanochat"}  # rotates in a function of its own


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MLA, "latents"),
        (HALVES, "no rotation was found"),
        (OWN, "no rotation was found"),
    ],
    ids=["latents", "halves", "own"],
)
def test_what_cannot_be_undone_has_a_reason(config, reason):
    network = network_of(config)
    found = looked(network, filled(network))
    assert len(found) == config["num_hidden_layers"]
    assert all(isinstance(one, str) and reason in one for one in found), found


def test_a_norm_after_the_rotation_is_not_undone():
    network = network_of(LLAMA)

    class Normed(nn.Module):
        def __init__(self, rope):
            super().__init__()
            self.inner, self.dims, self.base = rope, rope.dims, rope.base

        def __call__(self, x, offset=0):
            x = self.inner(x, offset=offset)
            return x / mx.abs(x).max(axis=-1, keepdims=True)

    attention = network.layers[2].self_attn
    attention.rope = Normed(attention.rope)
    found = looked(network, filled(network))
    assert [isinstance(one, str) for one in found] == [False, False, True, False]
    assert found[2] == "Normed rotates in a way that is not known"


def test_a_dynamic_base_is_known_as_long_as_it_is_the_same():
    scaling = {"type": "dynamic", "factor": 4.0}
    network = network_of(LLAMA | {"rope_scaling": scaling, "max_position_embeddings": 48})
    assert looked(network, filled(network, 40))[0] == Rotary(16, base=10000.0)
    assert "not known" in looked(network, filled(network, 64))[0]
    assert "not known" in looked(network, filled(network, 49))[0]


def test_a_cache_of_another_model_or_class_has_reasons():
    network, other = network_of(LLAMA), network_of(LLAMA | {"head_dim": 32})
    cache = filled(network)
    assert "shape" in looked(other, cache)[0]
    assert "without this entry" in looked(network, [*cache, cache[0]])[4]
    cache[1], cache[2] = QuantizedKVCache(), KVCache()
    found = looked(network, cache)
    assert len(found) == 2 and isinstance(found[1], Rotary)


def test_a_model_that_fails_has_a_reason_and_stays_as_it_was():
    network = network_of(LLAMA)
    cache = filled(network)
    ropes = [layer.self_attn.rope for layer in network.layers]
    looked(network, cache)
    assert cache[0].offset == 40
    network.layers[1].mlp.down_proj.weight = mx.zeros((3, 3))
    assert "cannot be run" in looked(network, cache)[3]
    assert all(
        layer.self_attn.rope is rope for layer, rope in zip(network.layers, ropes, strict=True)
    )


def test_a_rotation_that_is_another_is_noticed():
    assert _agrees(Rotary(DIM, base=1e4), nn.RoPE(DIM), (HEADS, TOKENS, DIM), 40)
    for other in (
        Rotary(DIM, base=1.01e4),
        Rotary(DIM, True, base=1e4),
        Rotary(DIM // 2, base=1e4),
        Rotary(DIM, base=1e4, factor=1.001),
        Rotary(),
    ):
        assert not _agrees(other, nn.RoPE(DIM), (HEADS, TOKENS, DIM), 40)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_undoing_rounds_nothing(dtype):
    """MLX's kernel computes in the dtype that it is given."""
    keys = mx.random.normal((2, 30, 32), key=mx.random.key(0)).astype(dtype)
    rotary, positions = Rotary(dims=32, base=10000.0), np.arange(30)
    undone = rotary.undo(keys, positions)
    assert mx.array_equal(undone, rotary.undo(keys.astype(mx.float32), positions))
    back = rotary.redo(undone, positions)
    assert mx.abs(back - keys.astype(mx.float32)).max() < 1e-5

"""A tiny random model of every architecture of mlx-lm, and what its cache gives.

``python tests/architectures.py`` writes docs/coverage.md; with names it prints a line of JSON
for each. Configs are made from the fields that a module's
``ModelArgs`` has.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

DOC = Path(__file__).parent.parent / "docs" / "coverage.md"
HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY, EXPERTS = 64, 4, 4, 2, 16, 320, 4
TOKENS = 40
_SECONDS = 60  # that an architecture may take
# values of fields, whether they have a default or not
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "model_dim", "block_dim"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers",
                     "num_transformer_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads",
                     "num_query_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads",
                     "num_attention_groups", "multi_query_group_num"), KV_HEADS),
    **dict.fromkeys(("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head",
                     "linear_key_head_dim", "linear_value_head_dim", "mamba_head_dim",
                     "mamba_d_head", "index_head_dim", "global_head_dim"), DIM),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "ffn_hidden_size",
                     "expert_ffn_hidden_size", "intermediate_size_mlp", "ff_intermediate_size",
                     "shared_expert_intermediate_size", "shared_intermediate_size", "n_inner",
                     "hidden_dim", "block_ffn_dim", "moe_shared_expert_intermediate_size",
                     "prefix_dense_intermediate_size", "share_expert_dim"), 96),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "padded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "model_max_length",
                     "block_size", "max_seq_len", "seq_length"), 512),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts",
                     "n_experts", "moe_n_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts",
                     "num_experts_per_token", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert", "n_group",
                     "topk_group", "moe_layer_freq", "decoder_sparse_step", "zero_expert_num",
                     "first_k_dense_replace", "num_dense_layers", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 32),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "qk_head_dim"), 16),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "swa_rope_theta", "rope_local_base_freq"),
                    10000.0),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps",
                     "layernorm_epsilon"), 1e-5),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size",
                     "attention_chunk_size", "conv_window", "window_size"), 16),
    **dict.fromkeys(("logits_scaling", "attention_multiplier", "embedding_multiplier",
                     "residual_multiplier", "routed_scaling_factor", "scale_emb", "scale_depth",
                     "partial_rotary_factor", "rotary_pct", "mla_scale_q_lora",
                     "mla_scale_kv_lora", "logits_soft_cap", "gegelu_limit"), 1.0),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "conv_L_cache", "linear_conv_kernel_dim",
                     "conv1d_width", "conv_kernel_size"), 4),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "n_groups",
                     "linear_num_key_heads", "linear_num_value_heads", "mamba_num_heads",
                     "mamba_n_heads", "index_n_heads", "a_low_rank_dim", "v_low_rank_dim",
                     "gate_low_rank_dim", "decay_low_rank_dim", "time_step_rank",
                     "mamba_n_groups"), 4),
    "tie_word_embeddings": True, "mamba_expand": 2, "index_topk": 8, "dim_model_base": HIDDEN,
    "sliding_window_pattern": 2, "full_attention_interval": 2, "attn_layer_period": 2,
    "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    "layer_group_size": 2, "group_norm_size": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "hidden_act": "silu", "mlp_only_layers": [], "quantization": None,
    "attention_method": "MLA", "zero_expert_type": "identity", "attention_bias": False,
    "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
    "dense_attention_every_n_layers": 2, "cla_share_factor": 2, "use_cla": False,
    "time_step_limit": [0.0, 100.0], "num_nextn_predict_layers": 0,
}  # fmt: skip
_OF_TYPE: dict[str, Any] = {
    "dict": {}, "list": [], "int": 2, "float": 1.0, "bool": False, "str": "",
}  # fmt: skip
SLIDING = ["sliding_attention", "full_attention"] * 2
# what a module needs beyond that; "text" names the module of a text_config
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
YARN = {"type": "yarn", "factor": 1.0, "mscale_all_dim": 0, "mscale": 1.0,
        "original_max_position_embeddings": 512}  # fmt: skip
OVERRIDES: dict[str, dict[str, Any]] = {
    "gemma3": {"text": "gemma3_text"},
    "gemma4": {"text": "gemma4_text"},
    "mistral3": {"text": "llama"},
    "pixtral": {"text": "llama"},
    "kimi_vl": {"text": "deepseek_v3"},
    "kimi_k25": {"text": "deepseek_v3"},
    "qwen2_vl": {"text": "qwen2"},
    "qwen3_vl": {"text": "qwen3"},
    "qwen3_vl_moe": {"text": "qwen3_moe"},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "muse_spark": {"num_shared_experts": 0, "rope_parameters": ROPE},
    "qwen3_5_moe": {"text_of": "qwen3_5"},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4,
                         "mamba_d_head": 32, "mamba_d_state": 16, "mamba_d_conv": 4,
                         "mamba_n_groups": 1, "mamba_proj_bias": False,
                         "mamba_conv_bias": True},
    "afmoe": {"layer_types": SLIDING},
    "baichuan_m1": {"sliding_window_layers": [1, 3], "conv_window": 2},
    "deepseek_v2": {"rope_scaling": YARN},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": SLIDING, "is_moe_layer": [False, True] * 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gear": {"layer_types": ["conv", "full_attention", "sliding_attention", "full_attention"]},
    "gemma3n": {
        "layer_types": SLIDING, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
        "laurel_rank": 8, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [96] * 4, "query_pre_attn_scalar": 16.0, "altup_coef_clip": 1.0,
        "final_logit_softcapping": 30.0, "altup_active_idx": 0, "altup_correct_scale": True,
    },
    "gemma4_text": {"layer_types": SLIDING, "num_kv_shared_layers": 2,
                    "hidden_size_per_layer_input": 8},
    "llama4": {"no_rope_layers": [1, 1, 1, 0], "rope_scaling": None, "num_experts_per_tok": 1},
    "gpt_oss": {"layer_types": SLIDING},
    "glm_moe_dsa": {"rope_parameters": ROPE},
    "hunyuan": {"use_cla": True, "num_experts": 1, "rope_scaling": {
        "type": "dynamic", "alpha": 1.0, "factor": 1.0}},
    "kimi_k3": {"hidden_act": "situ", "activation_situ_beta": 1.0, "num_experts": 4,
                "activation_situ_linear_beta": 1.0, "moe_intermediate_size": 96,
                "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8, "v_head_dim": 16, "linear_attn_config": {
        "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 16,
        "short_conv_kernel_size": 4}},
    "kimi_linear": {"linear_attn_config": {
        "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 16,
        "short_conv_kernel_size": 4}, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16},
    "lfm2": {"block_ff_dim": 96, "full_attn_idxs": [1, 3]},
    "lfm2-vl": {"text": "lfm2"},
    "lfm2_moe": {"full_attn_idxs": [1, 3]},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0], "rope_scaling": None},
    "mellum": {"layer_types": SLIDING, "rope_parameters": {
        "sliding_attention": ROPE, "full_attention": ROPE}},
    "mimo_v2_flash": {"hybrid_layer_pattern": [1, 0] * 2, "moe_layer_freq": [0, 1] * 2,
                      "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
                      "swa_head_dim": 16, "swa_v_head_dim": 16,
                      "add_swa_attention_sink_bias": True, "n_shared_experts": None},
    "minicpm3": {"rope_scaling": YARN | {
        "type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}},
    "ministral3": {"rope_parameters": ROPE | {"original_max_position_embeddings": 512,
                   "llama_4_scaling_beta": 0.1}, "layer_types": SLIDING,
                   "sliding_window": 16},
    "mistral4": {"rope_parameters": ROPE | {"original_max_position_embeddings": 512,
                 "llama_4_scaling_beta": 0.1}},
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "M"]},
    "nemotron-nas": {"block_configs": [{"attention": {"n_heads_in_group": 2},
                                        "ffn": {"ffn_mult": 1.5}}] * 3 + [
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}}]},
    "olmo3": {"layer_types": SLIDING},
    "openelm": {"num_query_heads": [4, 4, 2, 4], "num_kv_heads": [2, 1, 1, 2],
                "ffn_multipliers": [1.0] * 4},
    "plamo": {"n_shared_head": 2, "num_key_value_heads": None},
    "qwen3": {"rope_theta": 10000.0},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "spark2_5": {"hidden_act": "gelu", "rope_parameters": {
        "full_attention": ROPE, "sliding_attention": ROPE}},
}  # fmt: skip


def names() -> list[str]:
    """Modules of mlx-lm that hold a model."""
    import mlx_lm.models

    found = []
    for module in pkgutil.iter_modules(mlx_lm.models.__path__):
        source = Path(mlx_lm.models.__path__[0]) / f"{module.name}.py"
        text = source.read_text(encoding="utf-8")
        if "class Model(" in text and "class ModelArgs" in text:
            found.append(module.name)
    return found


def config_of(name: str, own: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tiny config for an architecture."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return _config(module.ModelArgs, name, OVERRIDES.get(name, {}) | (own or {}))


def _config(arguments: Any, name: str, own: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"model_type": name}
    for f in dataclasses.fields(arguments):
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if f.name == "text_config":
            found[f.name] = config_of(own["text"]) if "text" in own else _text_of(name, own)
        elif f.name in own:
            found[f.name] = own[f.name]
        elif f.name in SMALL and (needed or not _is_nothing(f.default)):
            found[f.name] = SMALL[f.name]
        elif needed and f.name != "model_type":
            kind = str(f.type).lower()
            found[f.name] = next((v for k, v in _OF_TYPE.items() if k in kind), None)
    return found


def _text_of(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """The text_config of a module with a class of its own for it."""
    module = importlib.import_module(f"mlx_lm.models.{own.get('text_of', name)}")
    for kind in ("TextConfig", "TextArgs", "TextModelArgs"):
        if dataclasses.is_dataclass(getattr(module, kind, None)):
            return _config(getattr(module, kind), name, own)
    return {}


def _is_nothing(default: Any) -> bool:
    return default is None or default is False


def network_of(name: str) -> Any:
    """A tiny random network."""
    import mlx.core as mx

    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(3)
    network = module.Model(module.ModelArgs.from_dict(config_of(name)))
    mx.eval(network.parameters())
    return network


def outcome(name: str) -> dict[str, str]:
    """{"status": analysed, in part, not or not built, "detail": classes, or why}."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache

    from cachegen_cli.kvcache import read_cache

    try:
        network = network_of(name)
        cache = make_prompt_cache(network)
        ids = mx.array([i * 7 % VOCABULARY for i in range(TOKENS)])
        steps = generate_step(ids, network, max_tokens=0, prompt_cache=cache, prefill_step_size=13)
        for _ in steps:
            pass
    except BaseException as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:80]
        return {"status": "not built", "detail": reason}
    layers, skipped = read_cache(cache, mx.float16)
    for kv in layers:
        if kv.keys.shape[1] > kv.tokens_seen or kv.tokens_seen != TOKENS:
            raise AssertionError(f"{kv.layer}: {kv.keys.shape} of {kv.tokens_seen}")
    kinds = Counter(f"{kv.cache}{'' if kv.role == 'kv' else f' ({kv.role})'}" for kv in layers)
    kinds.update(f"{s.cache} (not: {s.reason})" for s in skipped)
    if not layers and not skipped:
        return {"status": "not built", "detail": "its tiny config has no layers"}
    status = "analysed" if not skipped else "in part" if layers else "not"
    return {"status": status, "detail": ", ".join(f"{n} {kind}" for kind, n in kinds.items())}


def outcomes(of: list[str], at_once: int = 2) -> dict[str, dict[str, str]]:
    """Each in a process of its own, since a broken model may end it."""
    found: dict[str, dict[str, str]] = {}
    waiting, running = list(of), {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            run = [sys.executable, __file__, name]
            running[name] = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        name, process = next(iter(running.items()))
        try:
            out, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        del running[name]
        lines = out.decode().strip().splitlines()
        found[name] = (
            json.loads(lines[-1])
            if process.returncode == 0 and lines
            else {"status": "not built", "detail": f"it ended with {process.returncode}"}
        )
    return found


def main() -> None:
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            print(json.dumps(outcome(name)), flush=True)
        os._exit(0)  # a model whose arrays MLX cannot free would hang here
    from importlib.metadata import version

    rows = outcomes(names())
    lines = [
        "# Coverage of mlx-lm's architectures",
        "",
        f"Written by `python tests/architectures.py` with mlx-lm {version('mlx-lm')}: a tiny "
        "random model of each module reads 40 tokens, and its cache is read. *analysed*: every "
        "entry; *in part*: what is left out is named; *not*: nothing has tokens; *not built*: "
        "no tiny model of it could be made here, so nothing is known of it.",
        "",
        "| architecture | result | cache entries |",
        "|---|---|---|",
        *(f"| `{name}` | {row['status']} | {row['detail']} |" for name, row in rows.items()),
        "",
    ]
    DOC.write_text("\n".join(lines), encoding="utf-8")
    print(Counter(row["status"] for row in rows.values()))


if __name__ == "__main__":
    main()

"""Tiny random models made on the spot, of mlx-lm's own classes."""

from __future__ import annotations

import json
from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
SLIDING = LLAMA | {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
MAMBA = {
    "model_type": "mamba",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 4,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "tie_word_embeddings": True,
}


def make_model(folder: Path, config: dict, dtype: str = "float16") -> Path:
    """A random model of mlx-lm's own classes, with a byte-level tokenizer, on disk."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    model_class, arguments = _get_classes(config)
    mx.random.seed(7)
    network = model_class(arguments.from_dict(config))
    network.set_dtype(getattr(mx, dtype))
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": alphabet[0]})
    )
    return folder

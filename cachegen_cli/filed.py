"""A prompt-cache file as a capture, whose entries are read one by one when they are asked for."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from cachegen_cli.captures import Capture, Live
from cachegen_cli.device import mx
from cachegen_cli.entrynotices import copies_notice, model_notices
from cachegen_cli.errors import InputError, UsageError
from cachegen_cli.infos import one_or_all
from cachegen_cli.kvcache import CacheFile, LayerKV, make_cache, read_cache
from cachegen_cli.model import Model, dtype_name
from cachegen_cli.prompt import Prompt
from cachegen_cli.promptcache.copies import copies_in
from cachegen_cli.promptcache.header import Header
from cachegen_cli.reading import encode, prefill
from cachegen_cli.results.run import ModelInfo, Notice, PromptInfo
from cachegen_cli.wording import counted


class FiledLayers(Sequence[LayerKV]):
    """The analysed entries of a file; none is held longer than who asked for it does."""

    def __init__(self, path: Path, header: Header, places: Sequence[tuple[int, int]]) -> None:
        self.path, self.header, self.places = path, header, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> LayerKV: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[LayerKV]: ...

    def __getitem__(self, place: int | slice) -> LayerKV | Sequence[LayerKV]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        entry, part = self.places[place]
        # opened anew: arrays that were read once stay in memory as long as their file's table
        return CacheFile.again(self.path, self.header).analysed(entry)[part]


def capture_file(
    path: Path | str, model: Model | None = None, text: str | Prompt | None = None
) -> Capture:
    """A prompt-cache file of mlx-lm, of any layout, as if it had just been captured.

    Args:
        path: the file.
        model: the one that made it, for measuring quality and for knowing how keys were rotated.
        text: what comes after the cached prompt, for measuring quality with the model.

    Raises:
        InputError: no such file, or nothing in it can be analysed.
        UsageError: a text without a model.
    """
    started = time.perf_counter()
    path = Path(path)
    file = CacheFile.open(path)
    if text is not None and model is None:
        raise UsageError("a text after a prompt cache needs the model", "give --model, too")
    tokens = tuple(file.take_tokens())
    places, shapes, allocated = [], [], 0
    for entry in range(len(file.entries)):
        found = file.analysed(entry)
        places += [(entry, part) for part in range(len(found))]
        shapes += [(kv.keys.shape, kv.values.shape, kv.tokens_seen, kv.keys.dtype) for kv in found]
        allocated += sum(kv.allocated * kv.keys.shape[0] for kv in found)
    if not shapes:
        reasons = "; ".join(f"entry {s.entry} ({s.cache}): {s.reason}" for s in file.skipped[:3])
        raise InputError(
            f"'{path}' holds no keys and values that can be analysed: {reasons}",
            "'cachegen inspect' lists what it holds",
        )
    layers = FiledLayers(path, file.header, places)
    valid = sum(keys[0] * keys[1] for keys, *_ in shapes)
    notices = list(file.header.notices)
    if allocated > valid:
        notices.append(
            Notice(
                "padding-left-out",
                f"of {allocated} rows by head that the file holds {valid} are tokens that a cache "
                "keeps; the rest is padding, or fell out of a window, and is left out",
            )
        )
    if any(x.dtype == mx.float32 for state in file.entries for x in state.floats):
        notices.append(
            Notice(
                "rounded-to-16-bits",
                f"the file holds float32 numbers; they are rounded to {dtype_name(shapes[0][3])} "
                "before anything is measured, and 16-bit sizes are of those",
            )
        )
    if model is not None:
        notices += model_notices(file.metadata, model)
    pairs = copies_in(file.header.entries)
    if pairs:
        named = [(one, other) for one, other, _ in pairs]
        notices.append(copies_notice(named, sum(size for *_, size in pairs)))
    seen = max(seen for *_, seen, _ in shapes)
    dtype = dtype_name(shapes[0][3])
    ids = " ".join(map(str, tokens))
    return Capture(
        layers=layers,
        skipped=tuple(file.skipped),
        model=ModelInfo(
            id=model.id if model else _model_named(file.metadata),
            source="file",
            layers=len(file.entries),
            kv_heads=one_or_all(keys[0] for keys, *_ in shapes),
            head_dim=one_or_all(keys[2] for keys, *_ in shapes),
            dtype=dtype,
            compute_dtype=dtype,
        ),
        prompt=PromptInfo(
            f"{path.name}, layout {file.layout}",
            seen,
            hashlib.sha256(ids.encode()).hexdigest() if tokens else "",
            seen,
            False,
            0,
        ),
        notices=tuple(notices),
        timing={"load_seconds": time.perf_counter() - started},  # no prompt was read
        tokens=tokens if len(tokens) == seen else (),
        metadata=file.metadata,
        live=_live(layers, model, text) if model and text is not None else None,
        loaded=model,
    )


def _model_named(metadata: dict[str, str]) -> str:
    """What the file calls its model; of a folder its name, without the mark of a conversion."""
    name = metadata.get("model", "unknown model")
    return re.sub(r"-[0-9a-f]{12}$", "", Path(name).name) if Path(name).is_absolute() else name


def _live(layers: Sequence[LayerKV], model: Model, text: str | Prompt) -> Live:
    prompt = Prompt(text) if isinstance(text, str) else text
    _check_model(layers, model)
    ids = encode(model, prompt, chat=False)
    if len(ids) < 2:
        raise InputError(f"{prompt.source} has too few tokens to predict one", "give more text")
    return Live(model, make_cache(iter_all(layers)), tuple(ids))


def _check_model(layers: Sequence[LayerKV], model: Model) -> None:
    """Raise InputError unless the entries are such as the model makes."""
    own, _ = read_cache(prefill(model, [0]), layers[0].keys.dtype)
    if len(own) != len(layers):
        raise _other_model(f"it has {counted(len(layers), 'entry')}, the model {len(own)}")
    for found, mine in zip(layers, own, strict=True):
        for x, y in ((found.keys, mine.keys), (found.values, mine.values)):
            if (x.shape[0], x.shape[2]) != (y.shape[0], y.shape[2]):
                raise _other_model(
                    f"entry {found.layer} is of {counted(x.shape[0], 'head')} of {x.shape[2]}, "
                    f"the model's of {y.shape[0]} of {y.shape[2]}"
                )
        # a window where the model has none comes from --max-kv-size
        if mine.window and not found.window and not found.stored:
            raise _other_model(f"entry {found.layer} has no window, the model's has one")


def _other_model(what: str) -> InputError:
    return InputError(
        f"the prompt cache is not of this model: {what}", "name the model that made it"
    )


def iter_all(layers: Sequence[LayerKV]) -> Iterator[LayerKV]:
    """Every entry; in order, as a cache needs them."""
    for place, kv in enumerate(layers):
        if kv.layer != place:
            raise InputError(
                f"cache entry {kv.layer} ({kv.cache}) cannot be given to the model",
                "quality of a file is measured where every entry can be analysed",
            )
        kv.check_known("given to the model")
        yield kv

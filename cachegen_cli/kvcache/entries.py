"""What the classes of mlx-lm's cache hold: their rows in temporal order, without padding.

Reads attributes, which are the same in every version of mlx-lm and in what `files` makes of
a file; never ``state`` or ``nbytes`` of what is analysed, which differ between versions and
hold the padding of growing buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cachegen_cli.device import mx
from cachegen_cli.dtypes import clipped
from cachegen_cli.kvcache.layers import LayerKV, Packed, Stored
from cachegen_cli.kvcache.roles import Ranks, assign_roles
from cachegen_cli.results.run import Skipped
from cachegen_cli.results.spans import Entry

STATES = ("ArraysCache", "MambaCache")
_ROWS = 2  # axis of the tokens


class _Rows(NamedTuple):
    """Rows [1, H, T, D] of an entry and where they are from."""

    keys: Any
    values: Any
    tokens_seen: int
    window: int = 0
    sinks: int = 0
    stored: tuple[int, int] | None = None  # bits, group size


def read_cache(
    cache: Sequence[Any], dtype: mx.Dtype, ranks: Ranks = None, free: bool = False
) -> tuple[list[LayerKV], list[Skipped]]:
    """Split a live prompt cache into analysed entries, cast to ``dtype``, and skipped ones.

    Args:
        ranks: as in `assign_roles`.
        free: let each entry go once it is read, so that what is cast is not there twice.
    """
    layers: list[LayerKV] = []
    skipped: list[Skipped] = []
    for index, entry in enumerate(cache):
        parts = read_entry(index, entry, dtype)
        here = [part for part in parts if isinstance(part, LayerKV)]
        layers += here
        skipped += [part for part in parts if isinstance(part, Skipped)]
        if free:
            mx.eval([(kv.keys, kv.values) for kv in here])
            _forget(entry)
    layers, placeholders = assign_roles(layers, ranks)
    mx.eval([(kv.keys, kv.values) for kv in layers])
    if free:
        mx.clear_cache()
    return layers, skipped + placeholders


def _forget(entry: Any) -> None:
    """Take its rows from a live entry that is not used any more."""
    for part in getattr(entry, "caches", [entry]):
        if part is not entry:
            _forget(part)
        elif class_name(entry) in _READERS:
            entry.keys = entry.values = None


def read_entry(index: Entry, entry: Any, dtype: mx.Dtype | None = None) -> list[LayerKV | Skipped]:
    """What one cache entry holds, in ``dtype`` or its own 16-bit one; not evaluated yet.

    An entry of several, such as a CacheList, gives each of them.
    """
    name = class_name(entry)
    if (parts := getattr(entry, "caches", None)) is not None:
        return [
            found
            for place, part in enumerate(parts)
            for found in read_entry(f"{index}/{place}", part, dtype)
        ]
    if name in STATES:
        return [Skipped(index, name, bytes_of(entry), "it holds a recurrent state of fixed size")]
    if name not in _READERS:
        why = (
            "mlx-lm before 0.31.0 did not save what its parts are"
            if name == "CacheList"
            else "this cache class is not analysed"
        )
        return [Skipped(index, name, bytes_of(entry), why)]
    if entry.keys is None:
        return [Skipped(index, name, 0, "the entry is empty")]
    rows = _READERS[name](entry)
    sequences = rows if isinstance(rows, list) else [rows]
    found: list[LayerKV | Skipped] = []
    for place, one in enumerate(sequences):
        at = f"{index}#{place}" if len(sequences) > 1 else index
        found += _layers(at, name, entry, one, dtype)
    return found


def class_name(entry: Any) -> str:
    """The class of a live cache, or the one that a file names."""
    return str(getattr(entry, "cls", type(entry).__name__))


def bytes_of(entry: Any) -> int:
    """What an entry allocates, as far as it can be told."""
    return sum(array.nbytes for array in _arrays(entry) if hasattr(array, "nbytes"))


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for part in value.values() for array in _arrays(part)]
    if isinstance(value, list | tuple):
        return [array for part in value for array in _arrays(part)]
    if hasattr(value, "shape"):
        return [value]
    if hasattr(value, "__dict__") and not callable(value):
        return _arrays(vars(value))
    return []


def _layers(
    index: Entry, name: str, entry: Any, rows: _Rows, dtype: mx.Dtype | None
) -> list[LayerKV | Skipped]:
    """The rows of one sequence, or of every sequence of a batch."""
    first = rows.keys[0] if rows.stored else rows.keys
    if first.shape[_ROWS] == 0:
        return [Skipped(index, name, bytes_of(entry), "the entry is empty")]
    if first.shape[0] > 1:
        return [
            found
            for place in range(first.shape[0])
            for found in _layers(f"{index}#{place}", name, entry, _sequence(rows, place), dtype)
        ]
    allocated = entry.keys[0].shape[_ROWS] if rows.stored else entry.keys.shape[_ROWS]
    own = rows.keys[1].dtype if rows.stored else first.dtype
    if dtype is None:
        dtype = own if own.size == 2 else mx.float16
    stored = None
    if rows.stored:
        packed, other = (_packed(x, dtype) for x in (rows.keys, rows.values))
        stored = Stored(*rows.stored, packed, other)
        keys, values = (_dequantized(x, *rows.stored) for x in (packed, other))
        if own.size == 2:  # what codes stand for may be beyond the numbers that they are of
            keys, values = (clipped(x, dtype) for x in (keys, values))
    else:
        keys, values = rows.keys[0], rows.values[0]
    found = LayerKV(
        index,
        name,
        keys.astype(dtype),
        values.astype(dtype),
        rows.tokens_seen,
        rows.window,
        rows.sinks,
        stored=stored,
        unknown=getattr(entry, "unknown", ""),
        allocated=allocated,
        from_float32=own.size > dtype.size,
    )
    return [found]


def _packed(rows: Any, dtype: mx.Dtype) -> Packed:
    """Return the codes, scales and biases of packed rows of one sequence."""
    codes, scales, biases = (part[0] for part in rows)
    return codes, scales.astype(dtype), biases.astype(dtype)


def _dequantized(packed: Packed, bits: int, group_size: int) -> mx.array:
    """Return what packed rows stand for, [H, T, D] in float32."""
    codes, *parameters = packed
    scales, biases = (x.astype(mx.float32) for x in parameters)
    return mx.dequantize(codes, scales, biases, group_size=group_size, bits=bits)


def _sequence(rows: _Rows, place: int) -> _Rows:
    def of(x: Any) -> Any:
        return tuple(map(of, x)) if isinstance(x, list | tuple) else x[place : place + 1]

    return rows._replace(keys=of(rows.keys), values=of(rows.values))


def _read_growing(entry: Any) -> _Rows:
    n = int(entry.offset)
    return _Rows(entry.keys[..., :n, :], entry.values[..., :n, :], n)


def _read_quantized(entry: Any) -> _Rows:
    n = int(entry.offset)
    keys, values = (tuple(part[..., :n, :] for part in x) for x in (entry.keys, entry.values))
    return _Rows(keys, values, n, stored=(int(entry.bits), int(entry.group_size)))


def _read_rotating(entry: Any) -> _Rows:
    """The window in temporal order; a multi-token update leaves more rows than it holds."""
    index, keep, most = int(entry._idx), int(entry.keep), int(entry.max_size)
    seen = int(entry.offset)

    def ordered(x: mx.array) -> mx.array:
        if index != x.shape[_ROWS]:
            if index < seen:  # a ring: the sinks, then what is older than the write place
                parts = [x[..., :keep, :], x[..., index:, :], x[..., keep:index, :]]
                x = mx.concatenate(parts, axis=_ROWS)
            else:
                x = x[..., :index, :]
        excess = x.shape[_ROWS] - most
        if excess > 0:
            x = mx.concatenate([x[..., :keep, :], x[..., keep + excess :, :]], axis=_ROWS)
        return x

    return _Rows(ordered(entry.keys), ordered(entry.values), seen, most, keep)


def _read_chunked(entry: Any) -> _Rows:
    """Rows from the start of the chunk on."""
    seen, start = int(entry.offset), int(entry.start_position)
    n = seen - start
    return _Rows(entry.keys[..., :n, :], entry.values[..., :n, :], seen, int(entry.chunk_size))


def _read_batch(entry: Any) -> list[_Rows]:
    """Each sequence, which begins after its padding on the left."""
    end = int(entry._idx)
    found = []
    for place, (padding, seen) in enumerate(
        zip(entry.left_padding.tolist(), entry.offset.tolist(), strict=True)
    ):
        keys, values = (
            x[place : place + 1, :, max(padding, 0) : end] for x in (entry.keys, entry.values)
        )
        found.append(_Rows(keys, values, seen))
    return found


def _read_batch_rotating(entry: Any) -> list[_Rows]:
    """Each sequence's window, which may have been turned."""
    end, most = int(entry._idx), int(entry.max_size)
    keys, values = entry.keys, entry.values
    if entry.rotated:
        keys, values = (mx.roll(x, -end, _ROWS) for x in (keys, values))
        end = most
    found = []
    for place, (padding, seen) in enumerate(
        zip(entry.left_padding.tolist(), entry.offset.tolist(), strict=True)
    ):
        one, other = (x[place : place + 1, :, max(padding, 0) : end] for x in (keys, values))
        excess = max(one.shape[_ROWS] - most, 0)
        found.append(_Rows(one[:, :, excess:], other[:, :, excess:], seen, most))
    return found


_READERS: dict[str, Any] = {
    "KVCache": _read_growing,
    "ConcatenateKVCache": _read_growing,
    "QuantizedKVCache": _read_quantized,
    "RotatingKVCache": _read_rotating,
    "ChunkedKVCache": _read_chunked,
    "BatchKVCache": _read_batch,
    "BatchRotatingKVCache": _read_batch_rotating,
}

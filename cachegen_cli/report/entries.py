"""What is said of cache entries that are not simply a layer's keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachegen_cli.report.units import bits, error, percent, rough
from cachegen_cli.results.measurements import Measurement
from cachegen_cli.results.run import Run
from cachegen_cli.results.sizes import LayerResult, TensorResult
from cachegen_cli.results.spans import spans


def place_header(measured: Measurement, run: Run | None) -> str:
    """ "layer" where entries and layers are the same, else "entry"."""
    places = [place for row in measured.layers for place in row.places.entries]
    held = len(places) + len(run.skipped) if run else len(places)
    alike = run is None or held == run.model.layers
    alike = alike and (run is None or run.model.source != "file")
    return "layer" if alike and all(isinstance(place, int) for place in places) else "entry"


def tensor_names(row: LayerResult) -> tuple[str, str]:
    """What a row's keys and values are called."""
    return {"latent": ("latent", "rope key"), "index": ("index", "")}.get(
        row.role, ("keys", "values")
    )


def named_tensors(measured: Measurement) -> list[tuple[LayerResult, str, TensorResult]]:
    """(row, what the tensor is called, the tensor) of all that hold something."""
    return [
        (row, name, tensor)
        for row in measured.layers
        for name, tensor in zip(tensor_names(row), (row.keys, row.values), strict=True)
        if tensor.elements
    ]


def entry_notes(measured: Measurement) -> list[str]:
    """A sentence for each kind of entry that needs one."""
    rows = measured.layers
    notes = []
    if any(not row.stored for row in rows):
        for text, some in _by_text((row.stored, row) for row in rows).items():
            notes.append(f"{_named(some)}: quantized already ({text}).")
    for role, words in (
        (
            "latent",
            "multi-head latent attention; its keys are the latent, from which keys and values of "
            "all heads are made, its values the rotated key that all heads share",
        ),
        ("index", "the keys by which sparse attention chooses tokens; there are no values to them"),
    ):
        some = [row for row in rows if row.role == role]
        if some:
            notes.append(f"{_named(some)}: {words}.")
    windows = [row for row in rows if row.tokens < row.tokens_seen]
    if windows:
        shares = dict.fromkeys((row.tokens, row.tokens_seen) for row in windows)
        listed = ", ".join(f"{kept:,} of {seen:,}" for kept, seen in shares)
        notes.append(f"{_named(windows)}: a sliding window or chunk, {listed} tokens seen.")
    return notes


def spread_notes(measured: Measurement) -> list[str]:
    """Means and standard deviations over texts, beside the figures of all together."""
    found = measured.spread
    if not found:
        return []
    shown = []
    for name, label, show in (
        ("coded_bits_per_element", "{} coded bits an element", bits),
        ("coded_saving", "a saving of {}", percent),
        ("kl_nats", "a KL of {} nats", error),
        ("top1_agreement", "the same top token at {} of positions", percent),
    ):
        if name in found:
            mean, deviation = found[name]["mean"], found[name]["standard_deviation"]
            shown.append(label.format(f"{show(mean)} ± {_spread(deviation, show)}"))
    return [f"Over {len(measured.texts)} texts, mean ± standard deviation: {', '.join(shown)}."]


def _spread(deviation: float, show: Callable[[Any], str]) -> str:
    """A standard deviation to two digits, in the unit of its mean."""
    return f"{100 * deviation:.2g} %" if show is percent else rough(deviation)


def kv_bits_notes(measured: Measurement) -> list[str]:
    """Why mlx-lm would not quantize entries itself."""
    by_text = _by_text((row.kv_bits, row) for row in measured.layers if ":" in row.kv_bits)
    return [
        f"{_named(rows)}: mlx_lm --kv-bits {text.replace(': ', ' (', 1)})."
        if text.startswith("crashes")
        else f"{_named(rows)}: mlx_lm --kv-bits does {text.replace(': ', ' (', 1)})."
        for text, rows in by_text.items()
    ]


def _by_text(pairs: Iterable[tuple[str, LayerResult]]) -> dict[str, list[LayerResult]]:
    """The rows of each text; those without one are left out."""
    found: dict[str, list[LayerResult]] = {}
    for text, row in pairs:
        if text:
            found.setdefault(text, []).append(row)
    return found


def _named(rows: Sequence[LayerResult]) -> str:
    places = [place for row in rows for place in row.places.entries]
    many = len(places) > 1
    if all(isinstance(place, int) for place in places):
        return f"Entr{'ies' if many else 'y'} {spans(places)}"
    shown = ", ".join(map(str, places[:4])) + (", ..." if len(places) > 4 else "")
    return f"Entr{'ies' if many else 'y'} {shown}"

"""Results of one kind side by side: their figures, row by row, and what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cachegen_cli import __version__
from cachegen_cli.errors import UsageError
from cachegen_cli.report.common import common_settings
from cachegen_cli.report.table import Column, Figure, Row, View
from cachegen_cli.report.units import number, signed, times
from cachegen_cli.report.views import view
from cachegen_cli.results.differences import Difference, Differences
from cachegen_cli.results.schema import Result
from cachegen_cli.wording import counted

_MAIN = ("coded_bytes", "kl_nats", "actual_bytes", "valid_bytes", "bytes_per_token", "measured")
_SETTINGS = ("model", "prompt", "settings", "tool")
_TEXT, _PROFILE = "prompt.sha256", "settings.profile.sha256"


def differences(results: Sequence[Result], names: Sequence[str], reference: int) -> Differences:
    """Every figure of every row of results of one kind.

    Args:
        names: what the results are called.
        reference: which of them the others are held against.

    Raises:
        UsageError: they are of different kinds.
    """
    kinds = [result.kind for result in results]
    if len(set(kinds)) > 1:
        raise UsageError(
            "the results are of different kinds: "
            + ", ".join(f"{n} of '{k}'" for n, k in zip(names, kinds, strict=True)),
            "compare results of one command",
        )
    rows: dict[tuple[str, str], Difference] = {}
    for wide in (False, True):
        found = [dict(_figures(view(result, wide))) for result in results]
        for place in dict.fromkeys(place for one in found for place in one):
            row, figure, foot = place
            values = tuple(one.get(place) for one in found)
            rows.setdefault((row, figure), Difference(row, figure, values, foot, wide))
    tool = {"name": "cachegen", "version": __version__}
    return Differences(
        tool, kinds[0], tuple(names), reference, _differing(results), tuple(rows.values())
    )


def _figures(shown: View) -> Iterator[tuple[tuple[str, str, bool], Any]]:
    """((row, figure, whether it is at the foot), number)."""
    names = [shown.columns[place] for place in shown.naming]
    numbers = [c.key for c in shown.columns if c not in names and not c.drawn]
    seen: Counter[str] = Counter()
    for foot, rows in ((True, shown.totals), (False, shown.rows)):
        for row in rows:
            label = " ".join(filter(None, (_named(c, row[c.key]) for c in names)))
            seen[label] += 1
            if seen[label] > 1:  # as a grid over options may have it
                label = f"{label} ({seen[label]})"
            for key in numbers:
                value = row[key]
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield (label, key, foot), value


def _named(column: Column, value: Any) -> str:
    shown = "" if value is None else column.show(value)
    return shown if isinstance(value, str | None) else f"{column.header} {shown}"


def _differing(results: Sequence[Result]) -> dict[str, tuple[Any, ...]]:
    flat = []
    for result in results:
        data = result.to_json()
        data |= {"settings": common_settings(data)}
        flat.append(dict(_leaves({key: data[key] for key in _SETTINGS if key in data})))
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(one.get(key) for one in flat) for key in keys}
    differing = {key: some for key, some in values.items() if any(v != some[0] for v in some)}
    if not all(hashes := values.get(_TEXT, ())):  # a text that is not known is like no other
        differing[_TEXT] = tuple(value or None for value in hashes)
    return differing


def _leaves(data: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name, value


def differences_view(result: Differences, wide: bool) -> View:
    """A row a figure; by default of rows that have a sum only the one that matters most."""
    usual = [row for row in result.rows if not row.wide]
    feet, main = any(row.foot for row in usual), main_figure(result)
    usual = [row for row in usual if not feet or row.foot or row.figure == main]
    shown = list(result.rows) if wide else usual
    others = [place for place in range(len(result.sources)) if place != result.reference]
    many = len(others) > 1
    columns = [
        Column("row", "", left=True, folds=True, names=True),
        Column("figure", "figure", left=True, names=True),
    ]
    for place in (result.reference, *others):
        columns.append(Column(f"value_{place + 1}", letter(place), _figure))
        if place != result.reference:
            of = f" {letter(place)}" if many else ""
            if wide or not many:
                less = f"differs: from {letter(result.reference)}."
                columns.append(
                    Column(f"difference_{place + 1}", f"differs{of}", _signed, about=less)
                )
            ratio = f"ratio: to {letter(result.reference)}."
            columns.append(Column(f"ratio_{place + 1}", f"ratio{of}", times, about=ratio))
    notes = [
        "; ".join(f"{letter(place)}: {name}" for place, name in enumerate(result.sources)) + ".",
        _settings_note(result),
    ]
    if all(None in row.values for row in result.rows):
        notes.append("No row is in all of them, so there is nothing to compare.")
    if len(shown) < len(result.rows):
        notes.append(f"{counted(len(result.rows) - len(shown), 'more figure')} with --wide.")
    rows = [_row(row, result.reference) for row in shown]
    return View(
        f"{len(result.sources)} results of {result.compared}", columns, rows, notes=notes,
        answers=[
            row for row, of in zip(rows, shown, strict=True) if of.foot and of.figure == main
        ],
    )  # fmt: skip


def main_figure(result: Differences) -> str:
    """The figure that matters most of those that are there."""
    found = {row.figure for row in result.rows if not row.wide}
    return next((key for key in _MAIN if key in found), "")


def _row(row: Difference, reference: int) -> Row:
    cells: Row = {"row": row.row, "figure": row.figure}
    parts = zip(row.values, row.less(reference), row.ratios(reference), strict=True)
    for place, (value, less, ratio) in enumerate(parts, 1):
        cells[f"value_{place}"] = Figure(value, row.figure)
        cells[f"difference_{place}"] = Figure(less, row.figure)
        cells[f"ratio_{place}"] = ratio
    return cells


def _settings_note(result: Differences) -> str:
    parts = [
        f"{key} {' / '.join('-' if v is None else str(v) for v in values)}"
        for key, values in result.settings.items()
        if key not in (_TEXT, _PROFILE)
    ]
    hashes = {key: result.settings.get(key, (None,)) for key in (_TEXT, _PROFILE)}
    parts += ["the text itself"] if all(hashes[_TEXT]) else []
    parts += ["the profile itself"] if all(hashes[_PROFILE]) else []
    said = (
        f"Not the same: {'; '.join(parts)}."
        if parts
        else "Nothing that the results tell of model, prompt, settings and versions differs."
    )
    if None in result.settings.get(_TEXT, ()):
        said += " Whether the text itself is the same is not known."
    return said


def letter(place: int) -> str:
    """What the source at a place is called."""
    return chr(ord("A") + place)


def _figure(figure: Figure) -> str:
    return number(figure.key, figure.value)


def _signed(figure: Figure) -> str:
    return signed(figure.key, figure.value)

"""The command that shows saved results again, or holds them against each other."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cachegen_cli.errors import UsageError
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.outputs import OutputOptions
from cachegen_cli.options.typed import command_of
from cachegen_cli.wording import counted

REPORT_EXAMPLES = """\b
Examples:
  cachegen report result.json
  cachegen report result.json --wide --sort coded_saving --top 5
  cachegen report before.json after.json
  cachegen report a.json b.json c.json --reference 2 -o differences.csv"""


@takes_options
def report(
    *,
    files: Annotated[
        list[Path], typer.Argument(help="Saved results of any command.", show_default=False)
    ],
    reference: Annotated[
        int,
        typer.Option(
            "--reference", metavar="N", min=1, help="Hold the other results against the Nth."
        ),
    ] = 1,
    output: OutputOptions,
) -> None:
    """Show saved results again, in any format, or what differs between them."""
    from cachegen_cli.saved import load_result

    results = [load_result(path) for path in files]
    if reference > len(results):
        raise UsageError(
            f"there is no result {reference}", f"named are {counted(len(results), 'result')}"
        )
    if len(results) == 1:
        output.deliver(results[0])
        return
    from cachegen_cli.report.differences import differences

    found = differences(results, [str(path) for path in files], reference - 1)
    output.deliver(replace(found, command=command_of(sys.argv[1:], output.OWN)))

"""The command that makes a profile of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from cachegen_cli.commands.running import run
from cachegen_cli.errors import UsageError
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import CorpusOptions
from cachegen_cli.options.outputs import SafetensorsOptions
from cachegen_cli.options.profiling import ProfilingOptions

CALIBRATE_EXAMPLES = """\b
Examples:
  cachegen calibrate --prompt @corpus/ -o smollm.safetensors
  cachegen calibrate --prompt @texts.jsonl --max-prompt-tokens 1024 -o smollm.safetensors
  cachegen analyze --scheme transform --profile smollm.safetensors --prompt @notes.txt"""


@takes_options
def calibrate(
    *,
    components: Annotated[
        int, typer.Option(min=1, metavar="N", help="Components of a basis that are kept.")
    ] = 3072,
    channels: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Channels that share a basis at most; wider models get several.",
        ),
    ] = 6144,
    weigh: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Texts on which every layer's share in the KL is measured, which takes 2 x layers "
            "readings each; 0 to code all layers alike.",
        ),
    ] = 4,
    source: CorpusOptions,
    output: SafetensorsOptions,
    profiling: ProfilingOptions,
) -> None:
    """Learn a model's bases and symbol tables from texts, for --profile of other commands.

    Texts of the kinds that will be compressed serve best; a hundred of a thousand tokens are
    a start. What is scored later must not be among them.
    """
    from cachegen_cli import calibrating

    if source.prompt_cache_file is not None:
        raise UsageError("a profile is made from texts", "leave out --prompt-cache-file")
    if not source.prompt:
        raise UsageError("there are no texts to calibrate on", "give --prompt @DIR or @FILE.jsonl")
    run(
        calibrating.calibrate,
        source,
        output,
        profiling,
        path=output.target_file,
        components=components,
        channels=channels,
        weigh=weigh,
    )

"""The command that lists models."""

from __future__ import annotations

from cachegen_cli import console
from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.outputs import OutputOptions

MODELS_EXAMPLES = """\b
Examples:
  cachegen models
  cachegen models --json | jq -r '.models[].id'"""


@takes_options
def models(output: OutputOptions) -> None:
    """List the models on this machine and their KV cache sizes."""
    from cachegen_cli.catalog import list_models

    with console.progress(output.quiet) as progress:
        result = list_models(progress)
    output.deliver(result)

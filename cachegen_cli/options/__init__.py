"""Options that commands share, as dataclasses that a command takes as parameters.

`takes_options` flattens the dataclasses of a command's signature into the options that
Typer sees, so that a group is written down once.
"""

from cachegen_cli.options.flatten import takes_options
from cachegen_cli.options.inputs import CorpusOptions, InputOptions, SharedOptions, TextOptions
from cachegen_cli.options.outputs import (
    ArtifactOptions,
    CacheOptions,
    OutputOptions,
    PlanOptions,
    ReportOptions,
    SafetensorsOptions,
)
from cachegen_cli.options.settings import (
    CheckOptions,
    ContinuationOptions,
    QualityOptions,
    QuantizerOptions,
    SchemeOptions,
    WidthOptions,
)
from cachegen_cli.options.types import Integers, Names, Percent, Size, list_option

__all__ = [
    "ArtifactOptions",
    "CacheOptions",
    "CheckOptions",
    "ContinuationOptions",
    "CorpusOptions",
    "InputOptions",
    "Integers",
    "Names",
    "OutputOptions",
    "Percent",
    "PlanOptions",
    "QualityOptions",
    "QuantizerOptions",
    "ReportOptions",
    "SafetensorsOptions",
    "SchemeOptions",
    "SharedOptions",
    "Size",
    "TextOptions",
    "WidthOptions",
    "list_option",
    "takes_options",
]

"""The Typer app: each command is imported when it is asked for."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cachegen_cli import console
from cachegen_cli.ranks import is_first

# command -> its module, in the order of --help
COMMANDS = {
    "analyze": "analyses",
    "sweep": "analyses",
    "quality": "qualities",
    "sensitivity": "qualities",
    "calibrate": "calibrations",
    "compare": "qualities",
    "insights": "qualities",
    "plan": "qualities",
    "models": "models",
    "verify": "analyses",
    "pack": "packs",
    "unpack": "packs",
    "inspect": "inspections",
    "report": "reports",
    "capture": "caches",
    "convert": "caches",
}
# under mlx.launch these share out the work; for the rest one process does it
SHARED = ("analyze", "sweep", "quality")


class _Commands(TyperGroup):
    """A group that makes a command when it is first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:  # what is meant is sought among all
            self.commands.update({name: _made(name) for name in COMMANDS})
        elif cmd_name not in self.commands:
            self.commands[cmd_name] = _made(cmd_name)
        return self.commands.get(cmd_name)


def _made(name: str) -> Any:
    """The command, with the examples that stand beside its function."""
    module = importlib.import_module(f"cachegen_cli.commands.{COMMANDS[name]}")
    function = getattr(module, name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(
        name,
        epilog=getattr(module, f"{name.upper()}_EXAMPLES"),
        context_settings=_HELP,
    )(function if name in SHARED else _alone(function))
    return typer.main.get_command(single)


def _alone(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which rank 0 runs while the others have nothing to do."""

    @functools.wraps(command)
    def first(**options: Any) -> None:
        if is_first():
            command(**options)

    first.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    first.__annotations__ = command.__annotations__
    del first.__wrapped__
    return first


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="cachegen",
    cls=_Commands,
    help="What entropy-coding a language model's KV cache would really save.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would take longer than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _version(asked: bool) -> None:
    if asked:
        console.print_result(_versions())
        raise typer.Exit


def _versions() -> str:
    """The program, what its figures depend on, and where it runs."""
    from cachegen_cli.device import device_name
    from cachegen_cli.infos import tool_versions

    tool = tool_versions()
    return (
        f"cachegen {tool['version']}\nmlx {tool['mlx']}, mlx-lm {tool['mlx_lm']}\n"
        f"device {tool['device']} ({device_name()}), {tool['platform']}\n"
    )


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print versions and device."
        ),
    ] = False,
) -> None:
    """What entropy-coding a language model's KV cache would really save."""

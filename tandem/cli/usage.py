"""Wrong command lines: one sentence each, with the nearest option or command."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from tandem import __version__
from tandem.cli.output import emit
from tandem.errors import TandemError, did_you_mean

HELP_COLUMNS = 100


def new_app(root: Callable[..., None]) -> typer.Typer:
    """An app without commands, whose help is plain text; its own help and options are those of `root`."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        subcommand_metavar="COMMAND",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    )
    app.callback()(root)
    return app


def _print_version(is_asked: bool) -> None:
    """Print the version."""
    if is_asked:
        emit(f"tandem {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Dual-side RAG: a device's private documents and a cloud's public ones write one answer."""


class CommandGroup(TyperGroup):
    """Commands, of which a wrong name is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As the base class; raises a usage error with a sentence of ours."""
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        ctx.fail(
            f"`{ctx.command_path}` has no command {name!r}; {did_you_mean(name, self.list_commands(ctx))}"
        )


class LazyCommand(TyperCommand):
    """Stands for an app that is imported when it is used; its help line is known before."""

    def __init__(self, name: str, target: str, *, help: str, missing: str | None = None) -> None:
        """target: `module:attribute`, a typer app. missing: what to say where its package is not installed."""
        super().__init__(name, help=help)
        self._target, self._missing = target, missing

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        module, _, attribute = self._target.partition(":")
        if self._missing is not None and find_spec(module.partition(".")[0]) is None:
            raise TandemError(self._missing)
        command = typer.main.get_command(getattr(import_module(module), attribute))
        return command.make_context(info_name, args, parent=parent, **extra)


def explain(error: TyperException) -> str:
    """The sentence for a wrong command line."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    if context is not None and option is not None:
        return _explain_option(context, option)
    if context is not None and parameter is not None:
        name = parameter.get_error_hint().strip("'")
        if not error.message:
            return f"{name} is missing; see `{context.command_path} --help`."
        return f"{name} {error.message.removeprefix('Value error, ').rstrip('.')}."
    sentence = error.message.rstrip(".")
    if context is None or "`" in sentence:
        return sentence if sentence.endswith("?") else f"{sentence}."
    return f"{sentence}; see `{context.command_path} --help`."


def this_command() -> str:
    """The command line of this installation's `tandem` from the current folder."""
    script = Path(sysconfig.get_path("scripts")) / "tandem"
    found = shutil.which("tandem")
    if found is not None and script.exists() and os.path.samefile(found, script):
        return "tandem"
    if script.exists():
        return shlex.quote(_from_here(script))
    return f"{shlex.quote(_from_here(Path(sys.executable)))} -m tandem"


def _from_here(path: Path) -> str:
    """A path as short as it can be written in the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _explain_option(context: Any, option: str) -> str:
    """The remedy for an option that the command does not have."""
    command = context.command_path
    names = [name for parameter in context.command.get_params(context) for name in parameter.opts]
    options = [name for name in names if name.startswith("--")]
    return f"`{command}` has no option {option}; {did_you_mean(option, options)}"

"""Wrong command lines: one sentence each, with the nearest option or command."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from tandem import __version__, plugins
from tandem.cli.output import emit
from tandem.config.checks import as_predicate
from tandem.errors import TandemError

HELP_COLUMNS = 100


def new_app(root: Callable[..., None]) -> typer.Typer:
    """An app without commands, whose help is plain text; its own help and options are those of `root`."""
    app = typer.Typer(
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


class LazyCommand(TyperCommand):
    """Stands for an app that is imported when it is used; its help line is known before."""

    def __init__(self, name: str, target: str, *, help: str, missing: str | None = None) -> None:
        """target: `module:attribute`, a typer app or a function. missing: what to say where it is not installed."""
        super().__init__(name, help=help)
        self._target, self._missing = target, missing

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        package = self._target.partition(":")[0].partition(".")[0]
        if self._missing is not None and find_spec(package) is None:
            raise TandemError(self._missing)
        target = plugins.load(self._target)
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command()(target)
            target = app
        command = typer.main.get_command(target)
        return command.make_context(info_name, args, parent=parent, **extra)


def explain(error: TyperException) -> str:
    """The sentence for a wrong command line."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if parameter is not None:
        problem = as_predicate(error.message) if error.message else "is missing"
        sentence = f"{parameter.get_error_hint().strip(chr(39))} {problem}"
    else:
        sentence = error.message if isinstance(error, typer.BadParameter) else error.format_message()
    sentence = sentence.rstrip(".")
    if sentence.endswith("?"):
        return sentence
    return f"{sentence}." if context is None else f"{sentence}; see `{context.command_path} --help`."


def this_command() -> str:
    """The command line of this installation's `tandem` from the current folder."""
    script = Path(sysconfig.get_path("scripts")) / "tandem"
    on_path = shutil.which("tandem")
    if on_path is not None and script.exists() and os.path.samefile(on_path, script):
        return "tandem"
    if script.exists():
        return shlex.quote(_from_here(script))
    return f"{shlex.quote(_from_here(Path(sys.executable)))} -m tandem"


def _from_here(path: Path) -> str:
    """A path as short as it can be written in the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)

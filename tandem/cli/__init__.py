"""The command line of Tandem.

Importing it and printing help load nothing heavy; each command imports what it needs when it runs. An error that a
user can cause ends in one sentence on stderr and exit code 1, a wrong command line in one with exit code 2.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tandem import plugins
from tandem.cli.output import emit
from tandem.errors import TandemError, explain_missing

FAILED, WRONG_USAGE = 1, 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command; SIGHUP where its terminal is closed."""
NO_LABORATORY = (
    "The laboratory does not come with the package; clone Tandem's repository, and run "
    "`pip install -e '.[lab]'` there."
)
DISK_TROUBLES = {errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS}
"""Errors of the user's files, which a sentence explains better than a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argv: the arguments; None takes those of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    previous = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        if number != signal.SIGHUP or previous[number] != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _terminate)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except TandemError as error:
        emit(f"tandem: {error}", to_stderr=True)
        return FAILED
    except KeyboardInterrupt:
        emit("\ntandem: interrupted", to_stderr=True)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.errno not in DISK_TROUBLES:
            raise
        problem = f"{error.filename or 'A file'} cannot be used ({error.strerror})"
        emit(f"tandem: {problem}; check the disk and the permissions.", to_stderr=True)
        return FAILED
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(arguments: list[str]) -> int:
    """Parse and run; the context's `obj` holds the arguments, for a command that starts itself again."""
    import typer
    from typer.exceptions import TyperException

    from tandem.cli.options import explain

    command = build_command()
    try:
        with (
            explain_missing("This command"),
            command.make_context("tandem", list(arguments), obj=arguments) as context,
        ):
            return int(command.invoke(context) or 0)
    except typer.Exit as leaving:
        return leaving.exit_code
    except TyperException as error:
        emit(f"tandem: {explain(error)}", to_stderr=True)
        return WRONG_USAGE


def build_command() -> Any:
    """The group of all commands; those of the laboratory are imported when one of them is used."""
    import typer

    from tandem.cli.ask import ask, chat
    from tandem.cli.cloud import app as cloud
    from tandem.cli.index import index, search
    from tandem.cli.options import LazyCommand, new_app, root

    app = new_app(root)
    own = (ask, chat, index, search)
    for command in own:
        app.command()(command)
    others = {}
    for name in plugins.names("command"):
        if name not in plugins.OWN["command"]:
            others[name] = LazyCommand(name, plugins.address_of("command", name), help="Of another package.")
        elif isinstance(command := plugins.find("command", name), typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    app.add_typer(cloud, name="cloud")
    group: Any = typer.main.get_command(app)
    for command in others.values():
        group.add_command(command)
    group.add_command(
        LazyCommand(
            "lab",
            "tandem_lab.cli:app",
            help="Run experiments: simulations, test networks, benchmarks.",
            missing=NO_LABORATORY,
        )
    )
    return group


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Leave through every `with` and `finally`, so that nothing stays running."""
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)  # shell and kernel each send one
    raise SystemExit(128 + number)

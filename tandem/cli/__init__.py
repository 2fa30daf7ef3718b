"""The command line: `tandem ask`, `up`, `down`, `index`, `profile`, `status`, `doctor`, `config`, `eval`,
`fuzz`, `netlab`, `replay`, `bench`.

Importing it, and `tandem --help`, load nothing heavy; each command imports what it needs when it runs. What a
person can cause ends in one sentence on stderr: exit code 1, or 2 if the command line itself is wrong.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tandem.errors import TandemError

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. argv: the arguments; None takes those of the process."""
    from tandem.cli.parser import parser

    args = parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntandem: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as leaving:
        # Ray replaces our handler of SIGTERM by one that leaves with the bare signal number.
        if leaving.code == signal.SIGTERM:
            return TERMINATED
        raise
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    """Leaves through every `with` and `finally`, so that nothing stays running."""
    raise SystemExit(TERMINATED)

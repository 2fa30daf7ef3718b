"""Follows the page "Your documents, your model, ten minutes" literally: a fresh clone, an empty home, every command.

The clone borrows the packages of this Python, so the page's installation takes no time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests import chat_model, company, tiny_gguf

ROOT = Path(__file__).parents[1]
PAGE = "docs/tutorial/ten-minutes.md"
MARK = "@@step "


@dataclass(frozen=True, slots=True)
class Step:
    """What one block of commands printed, and how long it took."""

    commands: str
    output: str  # stdout and stderr, in order
    seconds: float


def read_steps(page: str) -> list[str]:
    """The blocks of commands on the page, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def prepare_home(home: Path) -> None:
    """What the page says that a reader has: notes, pages for the cloud, and a chat model, whose words make no sense."""
    company.write_notes(home / "notes")
    company.write_pages(home / "pages")
    (home / "models").mkdir()
    tiny_gguf.write_gguf(home / "models" / "chat.gguf", context=8192, chat_template=chat_model.CHATML)


def borrow_packages() -> str:
    """Commands that give the clone this Python's virtual environment, so that `make install` finds nothing to do."""
    links = "".join(
        f"ln -s {Path(sys.prefix) / name} tandem/.venv/\n" for name in ("bin", "lib", "pyvenv.cfg")
    )
    return f"mkdir tandem/.venv\n{links}touch tandem/.venv/.demo\n"


def follow(home: Path) -> list[Step]:
    """Run every block of the page in one shell. Raises RuntimeError with the output of the block that failed."""
    steps = read_steps((ROOT / PAGE).read_text("utf-8"))
    cloning = re.compile(r"^(git clone .*\n)", re.MULTILINE)
    commands = [cloning.sub(rf"\g<1>{borrow_packages()}", step) for step in (*steps, "")]
    script = home / "script.sh"
    script.write_text(
        "".join(f"printf '\\n{MARK}%s\\n' \"$(date +%s.%N)\"\n{step}" for step in commands), "utf-8"
    )
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": tempfile.gettempdir(),
        "ADDRESS": str(ROOT),
        "PYTHONPATH": str(home / "tandem"),
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", str(script)],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1_500,
        check=False,
    )
    parts = [part.split("\n", 1) for part in done.stdout.split(f"\n{MARK}")[1:]]
    if done.returncode:
        failed = steps[len(parts) - 1] if parts else ""
        raise RuntimeError(f"The page's commands\n{failed}ended with {done.returncode}:\n{parts[-1][1]}")
    clocks = [float(clock) for clock, _ in parts]
    return [
        Step(step, output, end - begin)
        for step, (_, output), begin, end in zip(steps, parts, clocks, clocks[1:], strict=False)
    ]


def lines(steps: list[Step]) -> list[str]:
    """What each block took, and its first command."""
    return [f"{step.seconds:7.1f} s  {step.commands.splitlines()[0]}" for step in steps]

"""What an editor and a type checker know of the API: the examples pass, wrong options and values are errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tandem

pytest.importorskip("mypy", reason="mypy is not installed (extra [test])")

ROOT = Path(tandem.__file__).parent.parent
EXAMPLES = ROOT / "examples"
USES = """
from tandem import Answer, BatchItem, SamplingParams, Tandem

def right(rag: Tandem) -> None:
    answer: Answer = rag.query("Why?", temperature=0.5, stop="books", placement="cloud", only="device")
    for item in rag.batch(["Why?"], concurrency=2, progress=print, sampling=SamplingParams(top_k=3)):
        known: BatchItem = item
        print(known.result().degraded_reason, answer)
    for event in rag.stream("Why?", seed=7, history=[{"role": "user", "content": "Who?"}]):
        print(event)

def wrong(rag: Tandem) -> None:
    rag.query("Why?", temprature=0.5)  # 13
    rag.query("Why?", max_tokens=4)  # 14
    rag.query(3)  # 15
    rag.query("Why?", seed="7")  # 16
    next(rag.stream("Why?", temprature=0.5))  # 17
    rag.batch(["Why?"], temprature=0.5)  # 18
    rag.query("Why?").txt  # 19
"""

pytestmark = pytest.mark.skipif(
    not EXAMPLES.exists(), reason="the examples are not part of this installation"
)


@pytest.mark.nightly("50 s of processor time for mypy; `make lint` checks the examples")
def test_examples_pass_and_wrong_uses_do_not(tmp_path: Path) -> None:
    """One run of mypy for both, with the settings of the project."""
    uses = tmp_path / "uses.py"
    uses.write_text(USES)
    sources = [*map(str, EXAMPLES.glob("*.py")), str(uses)]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *sources]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    errors = re.findall(r"^(?:.*/)?([\w.]+):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    kinds = ["call-arg"] * 2 + ["arg-type"] * 2 + ["call-arg"] * 2 + ["attr-defined"]
    wanted = [("uses.py", str(13 + number), kind) for number, kind in enumerate(kinds)]
    assert errors == wanted, done.stdout + done.stderr

"""Importing Tandem, and an answer of sites in one process, load no Ray and start no process: in a fresh one."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
import psutil
import tandem
from tandem import Tandem
assert "ray" not in sys.modules
with Tandem.launch(runtime="inline") as rag:
    answer = rag.query("Which game should Mira try?", seed=7)
    num_processes = 1 + len(psutil.Process().children(recursive=True))
    num_actors = len(rag.status()["actors"])
ray = sorted(name for name in sys.modules if name.partition(".")[0] == "ray")
print(json.dumps([answer.text, ray, num_processes, num_actors]))
"""


def test_an_answer_loads_no_ray_in_one_process() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == ["Mira likes puzzle games, so try Pukan Vakun.", [], 1, 12]


def test_what_prepares_an_actor_is_light() -> None:
    """Two threads that import transformers at once get half of it, so `actors.loading` has them take turns."""
    modules = "actors.decoder actors.retriever corpora engine.places"
    names = ", ".join(f"tandem.{name}" for name in modules.split())
    script = f"import sys, {names}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

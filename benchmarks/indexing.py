"""How long does `tandem index` take for the documents of a small company: 30 notes and 100 pages?

The files are made up, the same ones in every run. Each build is a process of its own, from an empty folder ("cold": no
index, no journal) and again without a change ("warm"). Prediction: the start of Python and of the embedder, which a
build of one file measures, plus the embedding, 25 chunks of a hundred words per second and core (docs/log.md).

Expected run time: a minute; `--smoke` builds a tenth of the files once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary

NUM_NOTES, NUM_PAGES, NUM_RUNS = 30, 100, 3
CHUNKS_PER_S = 25
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "mer", "nor", "pel", "rus", "sim", "tan", "vek", "zu")


def write_company(folder: Path, num_notes: int = NUM_NOTES, num_pages: int = NUM_PAGES) -> list[Path]:
    """Notes in Markdown with front matter and pages in HTML, of made-up words, in two folders."""
    draw = Random(7)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))) for _ in range(400)]
    notes, pages = folder / "notes", folder / "pages"
    for path in (notes, pages):
        path.mkdir(parents=True)
    for number in range(num_notes):
        text = f"---\nday: {number + 1}\n---\n# Note {number}\n\n{_paragraph(draw, words)}\n"
        (notes / f"note-{number}.md").write_text(text)
    for number in range(num_pages):
        body = "".join(f"<p>{_paragraph(draw, words)}</p>" for _ in range(2))
        (pages / f"page-{number}.html").write_text(
            f"<title>Page {number}</title><h1>Page {number}</h1>{body}"
        )
    return [notes, pages]


def _paragraph(draw: Random, words: list[str]) -> str:
    return " ".join(draw.choices(words, k=draw.randint(20, 50))).capitalize() + "."


def measure(source: Path, out: Path) -> tuple[float, float]:
    """Seconds of one `tandem index`, its process included, and seconds of processor time."""
    command = [sys.executable, "-m", "tandem", "index", "device", str(source), "--out", str(out), "--json"]
    started_s, cpu_s = time.perf_counter(), _children_cpu_s()
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent.parent)
    return time.perf_counter() - started_s, _children_cpu_s() - cpu_s


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Prints the prediction, then the times, then one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="a tenth of the files, once")
    parser.add_argument("--out", type=Path, help="ignored: there is nothing to draw")
    share, num_runs = (10, 1) if parser.parse_args().smoke else (1, NUM_RUNS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "company"
        write_company(folder, NUM_NOTES // share, NUM_PAGES // share)
        (one := Path(scratch) / "one.txt").write_text("One line.")
        num_files = (NUM_NOTES + NUM_PAGES) // share
        start_s, _ = measure(one, Path(scratch) / "index-of-one")
        total_s = start_s + num_files / CHUNKS_PER_S
        print(
            f"prediction: {start_s:.1f} s to start + {num_files} chunks / {CHUNKS_PER_S} per s = {total_s:.1f} s cold"
        )
        cold = [measure(folder, Path(scratch) / f"index-{run}") for run in range(num_runs)]
        warm = [measure(folder, Path(scratch) / f"index-{run}") for run in range(num_runs)]
    result: dict[str, Any] = {"num_files": num_files, "one_file_s": start_s}
    for name, runs in (("cold", cold), ("unchanged", warm)):
        wall, cpu = (summary(column) for column in zip(*runs, strict=True))
        print(f"{num_files} files, {name}: {wall['p50']:.1f} s, processor {cpu['p50']:.1f} s")
        result |= {f"{name}_s": wall, f"{name}_cpu_s": cpu}
    finish(result)


if __name__ == "__main__":
    main()

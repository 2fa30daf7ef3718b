"""What do hostile files cost a server that indexes them? Memory of its process, and how long its event loop is held.

Sound files of every kind (docx, pptx, xlsx, odt, epub, msg, mbox, zip, pdf, ...) are changed at random
(`tests/unit/retrieval/fuzzed_files.py`), uploaded one by one and deleted again; every hundredth time there is a
question, for which the index is opened again. Before them come files that grow when they are unpacked. A reader has 2 s
for a file in place of 60, or this would take days. Texts are embedded by a hash, since what is measured does not depend
on it.

The loop is held when it wakes later than it asked to. How much of that time the server itself computed, and how late an
idle server wakes, tell this from a machine that is busy with something else.

Prediction: no more than 100 MB and 100 ms, and every upload gets an answer.

Expected run time: three hours for 10,000 files on two cores; `--smoke`: 3 minutes for 100.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from langchain_core.embeddings import Embeddings

sys.path.insert(0, str(Path(__file__).parent.parent))

BEAT_S = 0.005
HELD_S = 0.02
"""What counts as held."""
IDLE_S = 10.0
ASK_EVERY = 100
DOCUMENTS = "/v1/tandem/documents"
QUESTION = {"model": "tandem", "prompt": "Which games does Mira like?", "max_tokens": 5}


class HashEmbeddings(Embeddings):
    """A vector by the hash of a text."""

    def embed_query(self, text: str) -> list[float]:
        """Random numbers that depend on the text alone."""
        vector: list[float] = np.random.default_rng(zlib.crc32(text.encode())).normal(size=384).tolist()
        return vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One after the other."""
        return [self.embed_query(text) for text in texts]


# ---- the server ----------------------------------------------------------------------------------------------


def serve(folder: Path) -> None:
    """Serve, and answer each line on stdin with what happened since the last one."""
    from tandem import Config, Tandem
    from tandem.plugins.clients.stores import LangChainEmbedder
    from tandem.plugins.server.app import create_app
    from tandem.plugins.server.document_store import open_store
    from tandem.plugins.server.http import ServerLimits
    from tandem.plugins.server.runner import Server, bind
    from tandem.retrieval.build import build_index

    where = "langchain:benchmarks.fuzz_files:HashEmbeddings"
    (folder / "mira.txt").write_text("Mira likes puzzle games.")
    build_index(folder / "mira.txt", folder / "index", LangChainEmbedder(HashEmbeddings(), where))
    settings = [f"device.index={folder / 'index'}", f"retrieval.embedder={where}"]
    config, store = open_store(Config.load(None, settings))
    assert store is not None
    store.indexer.limits = store.indexer.limits._replace(seconds=2, seconds_per_mb=0.5)
    holds: list[tuple[float, float]] = []
    tasks: list[asyncio.Task[None]] = []
    with Tandem.launch(config, runtime="inline") as tandem:
        listener = bind("127.0.0.1", 0)

        def begin() -> None:
            tasks.append(asyncio.get_running_loop().create_task(_beat(holds)))
            print(json.dumps(listener.getsockname()[1]), flush=True)

        server = Server(create_app(tandem, documents=store), begin, ServerLimits(drain_timeout_s=1.0))

        def report() -> None:
            for _ in sys.stdin:
                print(json.dumps({"peak_bytes": _peak_bytes(), "holds": holds[:]}), flush=True)
                holds.clear()
                Path("/proc/self/clear_refs").write_text("5")
            server.should_exit = True

        threading.Thread(target=report, daemon=True).start()
        server.run(sockets=[listener])


async def _beat(holds: list[tuple[float, float]]) -> None:
    """Note when the loop was late, in seconds, and how long this process computed meanwhile."""
    while True:
        asked_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(BEAT_S)
        late_s = time.perf_counter() - asked_s - BEAT_S
        if late_s > HELD_S:
            holds.append((late_s, time.process_time() - cpu_s))


def _peak_bytes() -> int:
    """Most memory since this was reset."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


# ---- its client ----------------------------------------------------------------------------------------------


def growing_files() -> Iterator[tuple[str, bytes]]:
    """Small files with much in them, within what an archive may unpack to."""
    from tests.unit.retrieval.office_files import docx_bytes, mail_bytes, xlsx_bytes, zip_bytes

    prose = b"Zomi has a weakness for puzzle games, and a note of May says so.\n\n"
    yield "text.zip", zip_bytes({"a.txt": prose * 1_400_000})
    yield "line.zip", zip_bytes({"a.txt": b"x" * 97_000_000})
    yield "chinese.zip", zip_bytes({"a.txt": "漢".encode() * 32_000_000})
    yield "headings.zip", zip_bytes({"a.md": b"# a\n" * 24_000_000})
    yield "lines.zip", zip_bytes({"a.jsonl": b'{"text": "a"}\n' * 6_900_000})
    yield "columns.csv", b",".join(b"%d" % number for number in range(1_000_000))
    yield "quarter.zip", zip_bytes({"a.txt": b"".join(b"%d " % number for number in range(1_400_000))})
    yield "elements.html", b"<p>x" * 1_000_000
    yield (
        "nested.zip",
        zip_bytes({"a.zip": zip_bytes({"b.zip": zip_bytes({"c.csv": b"cell," * 19_000_000})})}),
    )
    yield "files.zip", zip_bytes({f"{number}.txt": b"Tea." for number in range(19_000)})
    yield "fields.md", b"---\ntags: [%s]\n---\n%s" % (b",".join([b"tag"] * 500_000), prose * 20_000)
    yield (
        "paragraphs.docx",
        docx_bytes(lambda document: [document.add_paragraph("word") for _ in range(5_000)]),
    )
    yield "cells.xlsx", xlsx_bytes(Sheet=[[number] * 20 for number in range(5_000)])
    message = mail_bytes("Games", prose.decode() * 10_000)
    message.add_attachment(zip_bytes({"a.txt": prose * 700_000}), "application", "zip", filename="a.zip")
    yield "letter.eml", message.as_bytes()
    yield (
        "letters.mbox",
        (b"From ida@example.org Mon May  6 10:30:00 2024\n" + message.as_bytes() + b"\n") * 20,
    )


def send(client: httpx.Client, name: str, data: bytes) -> str:
    """Upload a file, and delete it; how that ended, in a word or a sentence."""
    response = client.post(DOCUMENTS, params={"name": name}, content=data)
    if response.status_code != 200:
        message = response.json()["error"]["message"]
        return f"{response.status_code} {message.partition(': ')[2] or message}"[:60]
    last = response.text.strip().rpartition("\n\n")[2]
    ending = last.partition("\n")[0].removeprefix("event: ")
    if ending == "indexed":
        client.delete(f"{DOCUMENTS}/{name}").raise_for_status()
    return ending if ending == "indexed" else last[:200]


def measure(files: Iterator[tuple[str, bytes]]) -> dict[str, Any]:
    """Send files to a server of its own."""
    outcomes: Counter[str] = Counter()
    holds: list[tuple[float, float, str]] = []
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", folder]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path]),
        }
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            client = httpx.Client(
                base_url=f"http://127.0.0.1:{json.loads(server.stdout.readline())}", timeout=900
            )

            def look(name: str) -> None:
                assert server.stdin is not None
                assert server.stdout is not None
                print(file=server.stdin, flush=True)
                state = json.loads(server.stdout.readline())
                peaks.append(state["peak_bytes"])
                holds.extend((late_s, cpu_s, name) for late_s, cpu_s in state["holds"])

            client.post("/v1/completions", json=QUESTION).raise_for_status()
            look("start")
            holds.clear()
            time.sleep(IDLE_S)
            look("idle")
            idle_s = max((late_s for late_s, _, _ in holds), default=0.0)
            holds.clear()
            for number, (name, data) in enumerate(files, start=1):
                outcome = send(client, name, data)
                outcomes[outcome] += 1
                if number % ASK_EVERY == 0 or name.partition(".")[0].isalpha():
                    client.post("/v1/completions", json=QUESTION).raise_for_status()
                look(name)
                if number % ASK_EVERY == 0:
                    print(f"{number} files, {(max(peaks[2:]) - peaks[1]) / 1e6:.0f} MB", flush=True)
            server.stdin.close()
    growths = [peak - peaks[1] for peak in peaks[2:]]
    return _describe(outcomes, holds, growths) | {"longest_idle_hold_ms": 1000 * idle_s}


def _describe(
    outcomes: Counter[str], holds: list[tuple[float, float, str]], growths: Sequence[int]
) -> dict[str, Any]:
    own = sorted(((min(late_s, cpu_s), name) for late_s, cpu_s, name in holds), reverse=True)
    return {
        "files": outcomes.total(),
        "indexed": outcomes["indexed"],
        "outcomes": dict(outcomes.most_common(12)),
        "max_growth_mb": max(growths) / 1e6,
        "last_growth_mb": growths[-1] / 1e6,
        "longest_hold_ms": 1000 * max((late_s for late_s, _, _ in holds), default=0.0),
        "longest_own_hold_ms": 1000 * own[0][0] if own else 0.0,
        "own_hold_at": own[0][1] if own else "",
        "own_holds_over_50_ms": sum(own_s > 0.05 for own_s, _ in own),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Grow, change, send."""
    from benchmarks._common import finish, new_parser
    from tests.unit.retrieval.fuzzed_files import fuzzed, seeds

    parser = new_parser(__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="100 files")
    parser.add_argument("--serve", type=Path, help="be the server, with its index in this folder")
    arguments = parser.parse_args(argv)
    if arguments.serve:
        serve(arguments.serve)
        return
    print("prediction: at most 100 MB, at most 100 ms", flush=True)
    num_files = 100 if arguments.smoke else arguments.files
    sound = seeds()
    numbers = range(arguments.first, arguments.first + num_files)
    growing = measure(growing_files())
    print(json.dumps(growing), flush=True)
    changed = measure(fuzzed(sound, number, arguments.seed) for number in numbers)
    finish({"seed": arguments.seed, "growing": growing, "changed": changed})


if __name__ == "__main__":
    main()

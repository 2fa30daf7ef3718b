"""Do two decoders of a cloud, on two Ray nodes, write more tokens per second than one?

For each number of decoders a cluster of its own: the device's node and as many of the cloud's, all on this machine. A
number of queries that the cloud answers by itself are open all the time, --seconds long, after one round for warming
up; none has documents, so that a query is one row of the model.

Prediction: on two cores, which also run the client, the draft queue and Ray, two write 1.2 to 1.6 times the tokens of
one. Where each decoder has a core or a GPU for itself it is 1.7: what remains is the one draft queue, which commits the
tokens of all. Every answer is the same, whoever wrote it.

Expected run time: 3 minutes; `--smoke` 2 minutes, nearly all of which is starting two clusters. With GPUs: `--set
cloud.torch_device=cuda cloud.gpus_per_decoder=1`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem import Config, Tandem
from tandem_lab.training.bundle import read_bundled_questions

PREDICTION = {"tokens per second against one decoder": (1.2, 1.6), "answers that differ": 0}
PATIENT = "cluster.start_timeout_s=600"
OPTIONS: dict[str, Any] = {"only": "cloud", "num_documents": 0, "temperature": 1.0, "seed": 1}


def run(state: Path, *arguments: str, settings: Sequence[str] = ()) -> None:
    """A command of Tandem that has notes of its own, as if on a machine of its own. RuntimeError if it fails."""
    command = [sys.executable, "-m", "tandem", *arguments]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"`tandem {' '.join(arguments)}` failed: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def cluster(num_decoders: int, settings: Sequence[str], folder: Path) -> Iterator[Tandem]:
    """A device and a cloud of as many nodes as decoders; afterwards none of it is left."""
    states = [folder / f"cloud-{number}" for number in range(num_decoders)]
    home = states[0]
    settings = [PATIENT, f"cloud.num_decoders={num_decoders}", *settings]
    with contextlib.ExitStack() as stack:
        for state in states:
            joining = [] if state == home else join_options(home)
            run(state, "up", "cloud", "--node-only", *joining, settings=settings)
            stack.callback(run, state, "down")
        run(home, "up", "cloud", settings=settings)
        run(home, "up", "device", settings=[PATIENT])
        stack.enter_context(patched_environment(home))
        yield stack.enter_context(Tandem.connect(None, Config.load(None, [PATIENT])))


@contextlib.contextmanager
def patched_environment(state: Path) -> Iterator[None]:
    """This process finds the cluster by the notes in a folder."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(state)
    try:
        yield
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before


def join_options(home: Path) -> list[str]:
    """How another node joins the cluster that was started with the notes in `home`."""
    from tandem.cluster import registry

    with patched_environment(home):
        address = registry.running_nodes()[0].address
    token = home / "tandem" / "cloud.token"  # none where the environment or Ray's own file has one
    return ["--join", address, *(["--token-file", str(token)] if token.exists() else [])]


async def serve(
    tandem: Tandem, at_once: int, seconds: float, max_new_tokens: int
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Keep so many queries open; tokens per second of the answers that ended in time, and one answer per question."""
    questions = [asked.question for asked in read_bundled_questions()]
    answers: dict[str, tuple[int, ...]] = {}
    waits_s: list[float] = []
    counts: list[int] = []
    start_s = time.monotonic()

    async def ask(number: int) -> None:
        while (now_s := time.monotonic()) < start_s + seconds:
            question = questions[number % len(questions)]
            answer = await tandem.aquery(question, max_new_tokens=max_new_tokens, **OPTIONS)
            assert answers.setdefault(question, answer.token_ids) == answer.token_ids
            waits_s.append(time.monotonic() - now_s)
            counts.append(len(answer.token_ids))
            number += at_once

    await asyncio.gather(*map(ask, range(at_once)))
    took_s = time.monotonic() - start_s
    return {
        "tokens_per_s": sum(counts) / took_s,
        "num_answers": len(counts),
        "answer_s": summary(waits_s),
        "load": os.getloadavg()[0],
    }, answers


def measure(num_decoders: int, arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """One cluster: what it serves, and passes of each decoder."""
    with (
        tempfile.TemporaryDirectory(prefix="tandem-decoders-") as name,
        cluster(num_decoders, arguments.settings, Path(name)) as tandem,
    ):
        asyncio.run(serve(tandem, arguments.at_once, 0.1, arguments.tokens))
        served, answers = asyncio.run(serve(tandem, arguments.at_once, arguments.seconds, arguments.tokens))
        passes = {
            actor["name"]: actor["extra"]["num_passes"]
            for actor in tandem.status()["actors"]
            if actor["name"].startswith("cloud/decoder")
        }
    print(
        f"{num_decoders} decoders: {served['tokens_per_s']:.0f} tokens per second, passes {passes}",
        flush=True,
    )
    return {"decoders": num_decoders, **served, "passes": passes}, answers


def main(argv: Sequence[str] | None = None) -> None:
    """One cluster after the other."""
    parser = new_parser(__doc__)
    parser.add_argument("--decoders", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--at-once", type=int, default=16, help="queries that are open")
    parser.add_argument("--tokens", type=int, default=48, help="length of an answer, at most")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--set", dest="settings", nargs="+", default=[], help="further settings of the cloud")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.smoke:
        arguments.at_once, arguments.tokens, arguments.seconds = 4, 8, 2.0
    print(f"prediction: {PREDICTION}", flush=True)
    measured = [measure(num_decoders, arguments) for num_decoders in arguments.decoders]
    results, first = [result for result, _ in measured], measured[0][1]
    differing = sum(
        answer != first[question]
        for _, answers in measured[1:]
        for question, answer in answers.items()
        if question in first
    )
    speedups = [result["tokens_per_s"] / results[0]["tokens_per_s"] for result in results]
    print(f"against {results[0]['decoders']} decoders: {', '.join(f'{each:.2f}' for each in speedups)} times")
    finish(
        {
            "prediction": PREDICTION,
            "result": {"runs": results, "speedups": speedups, "answers_that_differ": differing},
        }
    )


if __name__ == "__main__":
    main()

"""What does HTTP cost per token, and what happens to 64 streams at once?

The server runs in this process beside both parties (runtime "inline", the bundled models), its client in another one,
with plain sockets, so that no client library is measured. Both read the same monotonic clock.

Delivery is from the moment that `Tandem.astream` yields a token, in the server, to the moment that the client has read
its chunk: encoding, a queue, a write and a read on loopback. Target: at most 0.5 ms per token at the median, one query
at a time. Prediction: 0.3 ms, most of it two wake-ups of event loops (about 0.05 ms each) and the server's write (0.1
ms). It is measured with tokens that come from a script while the models rest, and with both parties at work, whose
Python shares the process's one interpreter lock; before, for the limit, with a server that is but a loop and a socket.

Load: 64 clients stream at once; none may be lost, and every text is the one that its seed gives alone. The time to the
first token is compared with that of the Python API at the same concurrency. Prediction: equal within a tenth, since
nearly all of it is waiting for the models.

Expected run time: 4 minutes on two idle cores; `--smoke` half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary
from tandem import Config, DoneEvent, Event, SamplingParams, SessionStatistics, Tandem, TokenEvent
from tandem.config.schema import ClusterConfig
from tandem_lab.training.bundle import read_bundled_questions

TARGET_MS, PREDICTED_MS = 0.5, 0.3
SCRIPTED_TOKENS = 300
MAX_TOKENS = 8
"""Of an answer."""
TIMEOUT_S = 600.0


class TimedTandem:
    """A Tandem as the server uses it, which remembers when each token was there."""

    def __init__(self, tandem: Tandem) -> None:
        self._tandem = tandem
        self.times_s: dict[int, list[float]] = {}  # by seed, of tokens with text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tandem, name)

    async def astream(self, question: str, **options: Any) -> AsyncGenerator[Event, None]:
        """As `Tandem.astream`."""
        times_s = self.times_s[options["seed"]] = []
        async for event in self._tandem.astream(question, **options):
            if isinstance(event, TokenEvent) and event.text.strip():
                times_s.append(time.monotonic())
            yield event


class ScriptedTandem(TimedTandem):
    """One whose tokens come from a script, every 10 ms, while the models rest."""

    async def astream(self, question: str, **options: Any) -> AsyncGenerator[Event, None]:
        """`SCRIPTED_TOKENS` tokens."""
        times_s = self.times_s[options["seed"]] = []
        for step in range(SCRIPTED_TOKENS):
            await asyncio.sleep(0.01)
            times_s.append(time.monotonic())
            yield TokenEvent(
                step=step,
                token=step,
                text=" word",
                device_accepted=True,
                cloud_accepted=True,
                aggregator="device",
                committed_s=0.01 * step,
                device_decode_s=0.01,
                cloud_decode_s=0.01,
            )
        yield DoneEvent(reason="length", statistics=SessionStatistics(num_tokens=SCRIPTED_TOKENS))


def serve(tandem: Any) -> str:
    """The URL of a server in a thread."""
    from tandem.server.app import create_app
    from tandem.server.runner import Server, bind

    ready, listener = threading.Event(), bind("127.0.0.1", 0)
    server = Server(create_app(tandem), tandem.config.http, ready.set)
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    ready.wait()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def measure_floor() -> list[float]:
    """Milliseconds of delivery by a server that is nothing but a loop and a socket: what no framework can go below."""
    chunk = {"id": "chatcmpl-" + 24 * "0", "choices": [{"index": 0, "delta": {"content": " word"}}]}
    line, made_s, address = f"data: {json.dumps(chunk)}\n\n".encode(), list[float](), queue.Queue[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(SCRIPTED_TOKENS):
            await asyncio.sleep(0.01)
            made_s.append(time.monotonic())
            writer.write(line)
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address.put(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(listen(),), daemon=True).start()
    (received,) = ask(address.get(), [("", 0)], 1)
    return [1e3 * (read - made) for made, read in zip(made_s, received["times_s"], strict=True)]


def ask(address: str, jobs: list[tuple[str, int]], concurrency: int) -> list[dict[str, Any]]:
    """Answers of a client in a process of its own: text, times of request and chunks, whether it is whole."""
    command = [sys.executable, __file__, "--client", address, "--concurrency", str(concurrency)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, check=True)
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


async def run_client(address: str, jobs: list[tuple[str, int]], concurrency: int) -> list[dict[str, Any]]:
    """The client's side of `ask`."""
    gate = asyncio.Semaphore(concurrency)

    async def one(question: str, seed: int) -> dict[str, Any]:
        async with gate:
            return await stream_one(address, question, seed)

    return await asyncio.gather(*(one(*job) for job in jobs))


async def stream_one(address: str, question: str, seed: int) -> dict[str, Any]:
    """One chat completion, read line by line."""
    message = {"role": "user", "content": question}
    body = json.dumps({"model": "tandem", "messages": [message], "seed": seed, "stream": True})
    host, port = address.split(":")
    start_s = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    text, times_s, is_whole = "", [], False
    async for line in reader:
        if line.startswith(b"data: {"):
            now_s, choice = time.monotonic(), json.loads(line[6:])["choices"][0]
            if content := choice["delta"].get("content"):
                times_s.append(now_s)
                text += content
        is_whole |= line.startswith(b"data: [DONE]")
    writer.close()
    return {"text": text, "start_s": start_s, "times_s": times_s, "is_whole": is_whole}


async def first_tokens_s(tandem: Tandem, jobs: list[tuple[str, int]]) -> list[float]:
    """Time to the first token of each question by the Python API, all at once."""

    async def one(question: str, seed: int) -> float:
        start_s, first_s = time.monotonic(), float("nan")
        async for event in tandem.astream(question, seed=seed):
            if isinstance(event, TokenEvent) and first_s != first_s:
                first_s = time.monotonic() - start_s
        return first_s

    return await asyncio.gather(*(one(*job) for job in jobs))


def measure_delivery(timed: TimedTandem, jobs: list[tuple[str, int]]) -> list[float]:
    """Milliseconds from the event to the client, of every token, one query after the other."""
    answers = ask(serve(timed), jobs, 1)
    delays = []
    for (_, seed), answer in zip(jobs, answers, strict=True):
        made_s = timed.times_s[seed]
        assert len(made_s) == len(answer["times_s"]), "a chunk per token with text"
        delays += [1e3 * (read - made) for made, read in zip(made_s, answer["times_s"], strict=True)]
    return delays


def show_delivery(what: str, delays: dict[str, float]) -> None:
    """Print a line."""
    figures = f"{delays['p50']:.2f} ms at the median, p95 {delays['p95']:.2f} ms, {delays['n']} tokens"
    print(f"delivery, {what}: {figures}; load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    """Print the prediction, then what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="few questions")
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        answers = asyncio.run(run_client(arguments.client, json.load(sys.stdin), arguments.concurrency))
        print(json.dumps(answers))
        return
    num_streams = 4 if arguments.smoke else arguments.streams
    print(
        f"prediction: {PREDICTED_MS} ms per token alone (target {TARGET_MS}), all {num_streams} streams whole"
    )
    questions = [each.question for each in read_bundled_questions()]
    alone = [(question, seed) for seed, question in enumerate(questions[: 3 if arguments.smoke else 40])]
    many = [(questions[number % len(questions)], 1000 + number) for number in range(num_streams)]
    config = replace(
        Config(),
        sampling=SamplingParams(max_new_tokens=MAX_TOKENS),
        cluster=ClusterConfig(runtime="inline", query_timeout_s=TIMEOUT_S),
    )
    with Tandem.launch(config) as tandem:
        tandem.query(questions[0])
        floor = summary(measure_floor())
        show_delivery("a bare socket", floor)
        scripted = summary(measure_delivery(ScriptedTandem(tandem), alone[:2]))
        show_delivery("server alone", scripted)
        delays = summary(measure_delivery(TimedTandem(tandem), alone))
        show_delivery("with both parties in its process", delays)
        address = serve(tandem)
        loads = [os.getloadavg()[0]]
        ask(address, alone[:1], 1)  # the server has started
        python_s = asyncio.run(first_tokens_s(tandem, many))
        answers = ask(address, many, num_streams)
        loads.append(os.getloadavg()[0])
        texts = [tandem.query(question, seed=seed).text for question, seed in many]
    python = summary(python_s)
    http = summary([answer["times_s"][0] - answer["start_s"] for answer in answers if answer["times_s"]])
    num_whole = sum(answer["is_whole"] for answer in answers)
    num_equal = sum(answer["text"] == text for answer, text in zip(answers, texts, strict=True))
    print(
        f"streams: {num_whole} of {len(answers)} whole, {num_equal} with the text that the seed gives alone"
    )
    print(f"first token, p95: HTTP {http['p95']:.2f} s, Python {python['p95']:.2f} s; load {loads}")
    finish(
        {
            "delivery_floor_ms": floor,
            "delivery_alone_ms": scripted,
            "delivery_ms": delays,
            "target_ms": TARGET_MS,
            "num_streams": len(answers),
            "num_whole": num_whole,
            "num_equal": num_equal,
            "first_token_http_s": http,
            "first_token_python_s": python,
            "load": loads,
        }
    )


if __name__ == "__main__":
    main()

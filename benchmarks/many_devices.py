"""How does one cloud serve 32 devices at once: is it fair, how fast is it, what does it hold?

The cloud is a process of its own. Two devices are real: processes with the bundled model and documents, which answer in
mode `dual`. Thirty are light: they have no documents and a drafter of 0.6 million parameters, and ask in mode
`speculative` with empty proposals, so that the cloud's model writes every token; they share this process. Each joins by
a link of its own, over TLS on loopback, and asks one question after the other, --seconds long, after one for warming
up. Before, one light device asks by itself.

Prediction: among the light devices the most served has at most 1.5 times the tokens of the least served, since open
queries share every pass and waiting ones are taken from the device with the fewest. Together they get 2 to 3 times the
tokens of one alone: a pass of 32 rows of the model costs as much as 8 of one row, but on two cores the rest of the
work, of 30 devices too, has to be done beside it. The cloud's memory grows by less than 300 MB.

Expected run time: 2 minutes on a quiet machine; `--smoke` 1 minute with 4 light devices and one real one. Before
anything is measured, one device after the other loads its model and its embedder: 0.6 s of processor time for a light
one and 10 s for a real one, so that on a busy machine most of the time goes there.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem import Config, Tandem
from tandem.errors import TandemError
from tandem.events import TokenEvent
from tandem.joining.join_link import DeviceList, JoinLink
from tandem.plugins.server.client import RunningDevice
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.reliability.processes import Child, child, cloud_arguments, device_arguments

PATIENT = "cluster.start_timeout_s=900"
"""Loading takes as long as the machine's other work lets it."""
LIGHT = (PATIENT, "device.num_documents=0", "device.model=bundled-drafter", "link.on_peer_loss=wait")
LIGHT_OPTIONS: dict[str, Any] = {
    "mode": "speculative",
    "max_proposal": 0,
    "pacing": "stop_and_wait",
    "num_documents": {"cloud": 0},
}
"""One row of the cloud's model each; with the default of 16 documents 30 such queries are 480 rows and 1.3 GB."""
GRACE_S = 10.0
"""What is open at the end may take so much longer; it is cancelled at its next token."""
PREDICTION = {
    "most to least served": 1.5,
    "tokens per second against one device": (2, 3),
    "cloud grows, MB": 300,
}
FAIR = 1.5


@dataclass
class Asking:
    """One device that asks, and when its tokens came."""

    name: str
    tandem: Tandem | RunningDevice
    options: dict[str, Any]
    came_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    num_answers: int = 0
    errors: list[str] = field(default_factory=list)

    def ask_until(self, end_s: float, questions: Sequence[str]) -> None:
        """One question after the other; the last one is left at the end."""
        number = 0
        while (start_s := time.monotonic()) < end_s:
            last_s = None
            try:
                for event in self.tandem.stream(
                    questions[number % len(questions)],
                    seed=number,
                    temperature=1.0,
                    timeout_s=end_s - start_s + GRACE_S,
                    **self.options,
                ):
                    now_s = time.monotonic()
                    if now_s > end_s:
                        return
                    if isinstance(event, TokenEvent):
                        self.came_s.append(now_s)
                        self.gaps_s += [] if last_s is None else [now_s - last_s]
                        last_s = now_s
                self.num_answers += 1
            except TandemError as error:
                if time.monotonic() < end_s:
                    self.errors.append(str(error))
            number += 1


def serve(devices: Sequence[Asking], seconds: float, questions: Sequence[str]) -> dict[str, Any]:
    """Let all ask at once; tokens per second of each within the time, and the gaps between tokens."""
    for device in devices:
        device.came_s, device.gaps_s = [], []
    start_s = time.monotonic()
    threads = [
        threading.Thread(target=device.ask_until, args=(start_s + seconds, questions)) for device in devices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {device.name: sum(came_s < start_s + seconds for came_s in device.came_s) for device in devices}
    gaps = [gap for device in devices for gap in device.gaps_s]
    return {
        "tokens_per_s": sum(counts.values()) / seconds,
        "tokens": counts,
        "gap_s": summary(gaps) if gaps else {},
        "errors": sorted({error for device in devices for error in device.errors}),
        "load": os.getloadavg()[0],
    }


@contextlib.contextmanager
def joined_devices(cloud: Child, folder: Path, num_light: int, num_real: int) -> Iterator[list[Asking]]:
    """Light devices in this process, then real ones in their own."""
    start_s = time.monotonic()
    first = JoinLink.parse(cloud.hello["link"])
    devices = DeviceList(folder / "keys")
    links = {
        name: replace(first, secret=devices.add(name))
        for name in [f"light-{n}" for n in range(num_light)] + [f"real-{n}" for n in range(num_real)]
    }
    with contextlib.ExitStack() as stack:
        asking = []
        for name, link in links.items():
            if name.startswith("light"):
                tandem = Tandem.join(str(link), Config.load(None, LIGHT))
                asking.append(Asking(name, stack.enter_context(tandem), LIGHT_OPTIONS))
            else:
                arguments = device_arguments(link, link.port, folder / name, [PATIENT])
                stack.enter_context(child(*arguments))
                config = Config.load(None, ["link.on_peer_loss=wait"])
                device = RunningDevice(config, folder / name)
                asking.append(Asking(name, stack.enter_context(device), {}))
            print(f"{name} has joined after {time.monotonic() - start_s:.0f} s", flush=True)
        yield asking


def main(argv: Sequence[str] | None = None) -> None:
    """One device alone, then all of them."""
    parser = new_parser(__doc__)
    parser.add_argument("--light", type=int, default=30)
    parser.add_argument("--real", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args(argv)
    num_light, num_real, seconds = arguments.light, arguments.real, arguments.seconds
    if arguments.smoke:
        num_light, num_real, seconds = 4, 1, 6.0
    print(f"prediction: {PREDICTION}", flush=True)
    questions = [asked.question for asked in read_bundled_questions()]
    with tempfile.TemporaryDirectory(prefix="tandem-devices-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cloud = stack.enter_context(
            child(*cloud_arguments(folder / "keys", 0, [PATIENT, "cluster.max_sessions=64"]))
        )
        devices = stack.enter_context(joined_devices(cloud, folder, num_light, num_real))
        idle = cloud.measure()
        light, real = devices[:num_light], devices[num_light:]
        light[0].ask_until(time.monotonic() + 1, questions)
        alone = serve(light[:1], seconds / 2, questions)
        together = serve(devices, seconds, questions)
        busy = cloud.measure()
    served = [together["tokens"][device.name] for device in light]
    result = {
        "light": num_light,
        "real": num_real,
        "seconds": seconds,
        "alone_tokens_per_s": alone["tokens_per_s"],
        "alone_gap_s": alone["gap_s"],
        "together_tokens_per_s": together["tokens_per_s"],
        "together_gap_s": together["gap_s"],
        "speedup": together["tokens_per_s"] / alone["tokens_per_s"],
        "most_to_least": max(served) / max(1, min(served)),
        "light_tokens": summary(served),
        "real_tokens": [together["tokens"][device.name] for device in real],
        "errors": together["errors"],
        "cloud_rss_mb": [idle["rss_bytes"] / 1e6, busy["rss_bytes"] / 1e6],
        "load": [alone["load"], together["load"]],
        "mean_tokens": statistics.mean(served),
    }
    print(f"most to least served {result['most_to_least']:.2f} (predicted at most {FAIR})")
    finish({"prediction": PREDICTION, "result": result})


if __name__ == "__main__":
    main()

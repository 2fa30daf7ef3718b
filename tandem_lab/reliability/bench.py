"""A cloud, a relay and a device, each apart from the others, and questions whose whole answers are known."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeAlias

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem.events import DoneEvent, Event, PeerEvent, TokenEvent
from tandem.joining.join_link import DeviceList, JoinLink
from tandem.plugins.server.client import RunningDevice
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.reliability.processes import Child, child, cloud_arguments, device_arguments
from tandem_lab.reliability.proxy import Cut, Link, relayed

Client: TypeAlias = Tandem | RunningDevice
NUM_QUESTIONS = 6
POLICIES = ("continue", "wait")
"""Of `link.on_peer_loss`."""


@dataclass
class Watched:
    """One answer, with the moments at which its tokens came."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)  # monotonic
    degraded_from: int | None = None
    asked_s: float = 0.0
    error: str = ""
    peer_events: list[PeerEvent] = field(default_factory=list)

    @property
    def is_in_order(self) -> bool:
        """No token is missing or came twice."""
        return self.steps == list(range(len(self.steps)))

    @property
    def gap_s(self) -> float:
        """The longest time without a token, from the first one on."""
        return max((b - a for a, b in zip(self.came_s, self.came_s[1:], strict=False)), default=0.0)

    def matches(self, whole: list[int]) -> bool:
        """Whether all tokens that both parties decided are those of the uncut answer; all, unless it is degraded."""
        if self.degraded_from is None and not self.error:
            return self.is_in_order and self.tokens == whole
        num_common = len(self.tokens) if self.degraded_from is None else self.degraded_from
        return self.is_in_order and self.tokens[:num_common] == whole[:num_common]


def follow(
    client: Client, question: str, seed: int, on_token: Callable[[int], object] | None = None
) -> Watched:
    """Ask and watch the answer come; on_token: called with each token's step, and may break things."""
    watched = Watched(asked_s=time.monotonic())
    try:
        for event in client.stream(question, seed=seed, temperature=1.0):
            _note(watched, event, on_token)
    except TandemError as error:
        watched.error = str(error)
    return watched


class BreakableLink(Protocol):
    """Whatever is between the parties."""

    def cut(self, how: Cut) -> None:
        """From now on nothing gets through."""

    def heal(self) -> None:
        """What is sent from now on gets through."""


@dataclass(kw_only=True)
class Trial:
    """Two parties with a link between them, and whole answers by question and seed."""

    link: BreakableLink
    clients: Mapping[str, Client]  # by `link.on_peer_loss`
    questions: list[str]
    whole: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def ask(self, question: str, seed: int, on_token: Any = None, policy: str = "continue") -> Watched:
        """As `follow`."""
        return follow(self.clients[policy], question, seed, on_token)

    def whole_answer(self, question: str, seed: int) -> list[int]:
        """The tokens of an answer that nothing disturbs."""
        if (question, seed) not in self.whole:
            watched = self.ask(question, seed, policy="wait")
            if watched.error or watched.degraded_from is not None:
                raise RuntimeError(f"An undisturbed answer is not whole ({watched.error}).")
            self.whole[question, seed] = watched.tokens
        return self.whole[question, seed]

    def detach(self) -> None:
        """Leave the parties."""
        for client in self.clients.values():
            with contextlib.suppress(TandemError):
                client.close()


@dataclass(kw_only=True)
class Bench(Trial):
    """A cloud and a device as processes of their own."""

    link: Link
    cloud: Child
    device: Child
    join_link: JoinLink
    folder: Path
    settings: list[str]

    @property
    def keys(self) -> Path:
        """Of the cloud."""
        return self.folder.parent / "keys"

    def new_link(self, name: str) -> JoinLink:
        """Of another device, straight to the cloud."""
        return replace(self.join_link, secret=DeviceList(self.keys).add(name))

    def revoked_link(self) -> JoinLink:
        """Of a device that may not come any more."""
        link = self.new_link("revoked")
        DeviceList(self.keys).revoke("revoked")
        return link

    def ask_some(self, question: str, seed: int, num_tokens: int) -> None:
        """Leave an answer after so many tokens, which cancels it."""
        stream = self.clients["continue"].stream(question, seed=seed, temperature=1.0)
        for event in stream:
            if isinstance(event, TokenEvent) and event.step >= num_tokens:
                break
        del stream

    def cutter(self, at: int, how: Cut, cut_s: float) -> Any:
        """For `ask`: cuts the link at a step, for a while; for 0 s not at all."""

        def cut(step: int) -> None:
            if step == at and cut_s:
                self.link.cut(how)
                timer = threading.Timer(cut_s, self.link.heal)
                timer.start()

        return cut

    def ask_until_joined(self) -> float:
        """Ask one question that waits for the cloud; seconds until its first token. Raises RuntimeError if it fails."""
        watched = self.ask(self.questions[0], 0, policy="wait")
        if not watched.matches(self.whole_answer(self.questions[0], 0)) or watched.error:
            raise RuntimeError(f"The cloud was not joined again ({watched.error}).")
        return watched.came_s[0] - watched.asked_s

    def attach(self) -> None:
        """Ask the device's new process."""
        self.detach()
        self.clients = attach_all(self.folder, self.settings)


def attach_all(folder: Path, settings: Sequence[str]) -> dict[str, RunningDevice]:
    """A client of the device for each policy."""
    return {policy: RunningDevice(config, folder) for policy, config in configs_of(settings).items()}


def configs_of(settings: Sequence[str] = ()) -> dict[str, Config]:
    """Settings for each policy."""
    return {policy: Config.load(None, [*settings, f"link.on_peer_loss={policy}"]) for policy in POLICIES}


def _note(watched: Watched, event: Event, on_token: Any) -> None:
    match event:
        case TokenEvent():
            watched.tokens.append(event.token)
            watched.steps.append(event.step)
            watched.came_s.append(time.monotonic())
            if on_token is not None:
                on_token(event.step)
        case PeerEvent():
            watched.peer_events.append(event)
        case DoneEvent():
            watched.degraded_from = event.statistics.degraded_from
            watched.error = event.error or ""


def first_questions(num_questions: int = NUM_QUESTIONS) -> list[str]:
    """Of the bundled ones."""
    return [asked.question for asked in read_bundled_questions()][:num_questions]


@contextlib.contextmanager
def running(settings: Sequence[str] = ()) -> Iterator[Bench]:
    """A cloud's process, a relay, a device's process that joined through it, and this process as its client."""
    with tempfile.TemporaryDirectory(prefix="tandem-reliability-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cloud = stack.enter_context(child(*cloud_arguments(folder / "keys", 0, settings)))
        cloud.fix_port(cloud.hello["port"])
        link = stack.enter_context(relayed(cloud.hello["port"]))
        join_link = JoinLink.parse(cloud.hello["link"])
        device = stack.enter_context(
            child(*device_arguments(join_link, link.port, folder / "device", settings))
        )
        bench = Bench(
            cloud=cloud,
            device=device,
            link=link,
            join_link=join_link,
            clients=attach_all(folder / "device", settings),
            folder=folder / "device",
            questions=first_questions(),
            settings=list(settings),
        )
        try:
            yield bench
        finally:
            bench.detach()


@contextlib.contextmanager
def with_another_device(bench: Bench, name: str) -> Iterator[Bench]:
    """The same cloud and questions, with a device of its own that shares the relay."""
    folder = bench.folder.parent / name
    arguments = device_arguments(bench.new_link(name), bench.link.port, folder, bench.settings)
    with child(*arguments) as device:
        other = replace(bench, device=device, folder=folder, clients=attach_all(folder, bench.settings))
        try:
            yield other
        finally:
            other.detach()


def pick(bench: Trial, random: Random, num_seeds: int = 3) -> tuple[str, int, list[int]]:
    """A question, a seed, and the tokens of the undisturbed answer."""
    question, seed = random.choice(bench.questions), random.randrange(num_seeds)
    return question, seed, bench.whole_answer(question, seed)

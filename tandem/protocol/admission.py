"""A coordinator's door: what a query of another party's user may ask, and how many are open at once.

Where queries belong to devices, the next one is of the device with the fewest open, so that nobody's many queries keep
another's single one waiting (max-min fairness: all open queries share every pass of the model).

A query waits at its home, which tells its peer only when it opens it, or at the peer, which meanwhile shows the home
that it is alive. Its time limit runs on, and it can be cancelled.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tandem.codecs.base import MAX_VOCAB
from tandem.errors import Code, ConfigError, Fault, ProtocolError, TandemError
from tandem.events import ClientEvent, DoneEvent, Event, SessionStatistics, WaitEvent
from tandem.messages import Cancel, Done, Heartbeat, LinkBody, LinkFrame, Open
from tandem.modes import MAX_SHOWN, SessionSpec
from tandem.profiler.estimates import DecodeLine
from tandem.protocol.link import Stopwatch
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import Send
from tandem.protocol.services import policy_of
from tandem.protocol.session import ABANDONED_S, StopCheck
from tandem.protocol.table import CoordinatorTable
from tandem.topology import PARTIES, Party, at_start

MAX_WINDOW = 1024
"""Drafts past the last committed token that a device may ask a cloud to keep."""
MAX_DOCUMENTS = 64
"""Documents that a cloud retrieves for one query."""
MAX_QUESTION_BYTES = 65_536
"""Bytes of a question, the turns before it, its system prompt and stop texts; of the filter for the cloud's documents;
and of a grammar."""
MAX_STOPS = 64
MAX_BITS = 1 << 40
MAX_NAME = 256
"""Characters of the name of a policy."""


def check_spec(spec: SessionSpec, max_answer_tokens: int) -> None:
    """Raise ProtocolError, one sentence with value and limit, if a query asks for more than a cloud gives.

    What a single field may be at all, its own bounds say (`tandem.modes.query`). max_answer_tokens: of one answer.
    """
    sampling, decoding = spec.sampling, spec.decoding
    texts = [*spec.texts, spec.system_prompt or "", *sampling.stop]
    num_bytes = "the length of question, history, system prompt and stop texts in bytes"
    filter_bytes = "the length of the cloud's filter in bytes"
    asked: tuple[tuple[str | None, str, int, int], ...] = (
        ("max_new_tokens", "max_new_tokens", sampling.max_new_tokens, max_answer_tokens),
        ("num_documents", "num_documents of the cloud", spec.num_documents(Party.CLOUD), MAX_DOCUMENTS),
        ("question", num_bytes, _num_bytes(texts), MAX_QUESTION_BYTES),
        ("cloud_filter", filter_bytes, _num_bytes([spec.cloud_filter]), MAX_QUESTION_BYTES),
        ("grammar", "the length of the grammar in bytes", _num_bytes([spec.grammar]), MAX_QUESTION_BYTES),
        ("device_filter", "the length of the device's filter, which it keeps,", len(spec.device_filter), 0),
        ("stop", "the number of stop texts", len(sampling.stop), MAX_STOPS),
        ("top_k", "top_k", sampling.top_k, MAX_VOCAB),
        (None, "the highest token id", max(spec.eos_token_ids, default=0), spec.vocab_size - 1),
        ("max_window", "max_window", decoding.max_window, MAX_WINDOW),
        ("uplink_budget_bits", "uplink_budget_bits", decoding.uplink_budget_bits, MAX_BITS),
        ("placement", "the length of the placement's name", len(decoding.placement), MAX_NAME),
        ("length_policy", "the length of the length policy's name", len(decoding.length_policy), MAX_NAME),
        ("mode", "the number of workers", max(map(len, (spec.workers, spec.weights, decoding.home))), 0),
        (None, "the number of parties", _num_parties(spec), 2),
    )
    for option, what, value, most in asked:
        if value > most:
            shown = value if value < MAX_SHOWN else f"more than {MAX_SHOWN:g}"
            raise ProtocolError(
                f"This cloud allows at most {most} for {what} (got {shown}); ask for less.",
                code=Code.OVER_LIMIT,
                option=option,
            )
    _check_made(spec)


def _check_made(spec: SessionSpec) -> None:
    """Check what actors make of a query as they begin: a policy, which must be loaded here, and offline profiles."""
    try:
        if spec.rules.is_placed:
            policy_of(spec)
    except ConfigError as error:
        raise ProtocolError(str(error), code=Code.INVALID, option="placement") from None
    try:
        for party in PARTIES:
            if line := spec.decode_line(party):
                DecodeLine.from_tuple(line)
    except TandemError as error:
        raise ProtocolError(str(error), code=Code.INVALID) from None


def _num_parties(spec: SessionSpec) -> int:
    try:
        return len(spec.parties)
    except ConfigError:  # no mode allows these parties
        raise ProtocolError(
            "This query asks for parties or a mode that cannot be; install the same version of tandem-rag everywhere.",
            option="mode",
        ) from None


def _num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


MAX_WAITING = 256
"""Queries that wait at one party; one more is refused."""
RETRY_AFTER_S = 30
"""When there may be room again: a party cannot know, but all that wait will not have ended at once."""
OWN_REMEDY = "raise cluster.max_sessions"
CLOUD_REMEDY = "ask the cloud's owner to raise devices.max_queries"
"""The remedies that make room, where the limit is a setting of this party, or one of the cloud that it has joined."""


@dataclass(slots=True)
class Waiting:
    """A query that is not open yet."""

    spec: SessionSpec
    silence: Stopwatch  # of its peer


class AdmittingTable(CoordinatorTable):
    """The coordinator (draft queue) of one party, with at most `max_open` sessions.

    Invariant: while a query waits, `max_open` sessions are open, or the next tick opens it.
    """

    def __init__(
        self,
        party: str,
        make_stop_check: Callable[[SessionSpec], StopCheck],
        find_obstacle: Callable[[], str | None] = lambda: None,
        *,
        max_open: int,
    ) -> None:
        super().__init__(party, make_stop_check, find_obstacle)
        self.max_open = max_open  # may change; where it falls, open sessions go on
        self.remedy = OWN_REMEDY  # of those whose queries begin here, where too many wait
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """Queries that are not open yet."""
        return len(self._waiting)

    @property
    def needs_ticks(self) -> bool:
        """Whether there are timers to run."""
        return super().needs_ticks or bool(self._waiting)

    def holds(self, session: int) -> bool:
        """Whether a query is open or waits."""
        return session in self.sessions or session in self._waiting

    def open(self, spec: SessionSpec, now_s: float) -> list[Send]:
        """A query starts, or waits until there is room."""
        if not self._waiting and len(self.sessions) < self.max_open:
            return super().open(spec, now_s)
        if len(self._waiting) >= MAX_WAITING:
            return self._refuse(spec, now_s)
        self._waiting[spec.session] = Waiting(spec, Stopwatch(now_s))
        if spec.home == self.party:
            return [_to_client(spec, WaitEvent(num_ahead=len(self._waiting) - 1))]
        return [self._toward_home(spec, Heartbeat(), now_s)]

    def receive(self, message: object, now_s: float, source: str = "") -> list[Send]:
        """Any message for a coordinator. source: the peer that a frame is from; by default the only one."""
        if isinstance(message, LinkFrame) and (waiting := self._waiting.get(message.session)) is not None:
            return self._receive_early(message, waiting, now_s, source)
        return super().receive(message, now_s, source) + self._admit(now_s)

    def tick(self, now_s: float) -> list[Send]:
        """Timers of all sessions; then whatever waits may have room."""
        for session, waiting in list(self._waiting.items()):
            waiting.silence.tick(now_s)
            if waiting.spec.home != self.party and waiting.silence.length_s(now_s) > ABANDONED_S:
                del self._waiting[session]
        return super().tick(now_s) + self._admit(now_s)

    def cancel(self, session_id: int, now_s: float) -> list[Send]:
        """The user gave up a query, open or not."""
        if (waiting := self._waiting.pop(session_id, None)) is not None:
            return [_to_client(waiting.spec, DoneEvent(reason="cancelled", statistics=SessionStatistics()))]
        return super().cancel(session_id, now_s) + self._admit(now_s)

    def _admit(self, now_s: float) -> list[Send]:
        """Open what is next, as long as there is room."""
        sends: list[Send] = []
        while self._waiting and len(self.sessions) < self.max_open:
            num_open = Counter(map(self.owner_of, self.sessions))
            # of the least that are equal, `min` takes the first: what has waited longest
            following = min(self._waiting, key=lambda session: num_open[self.owner_of(session)])
            sends += super().open(self._waiting.pop(following).spec, now_s)
        return sends

    def _receive_early(self, frame: LinkFrame, waiting: Waiting, now_s: float, source: str) -> list[Send]:
        """The home of a waiting query works on it, or has given it up."""
        if waiting.spec.home == self.party:
            return []  # no peer knows of it
        if isinstance(frame.body, Cancel | Done):
            del self._waiting[frame.session]
            return []
        waiting.silence.restart(now_s)
        if not isinstance(frame.body, Heartbeat | Open):
            self.keep_early(frame, now_s, source)
        return [self._toward_home(waiting.spec, Heartbeat(), now_s)]

    def _refuse(self, spec: SessionSpec, now_s: float) -> list[Send]:
        self.num_refused += 1
        is_own = spec.home == self.party
        fault = Fault(code=Code.BUSY, retry_after_s=RETRY_AFTER_S)
        reason = (
            f"{at_start(self.party)} is busy: {len(self.sessions)} queries are open and {len(self._waiting)} wait; "
            f"retry after {RETRY_AFTER_S} s, or {self.remedy if is_own else f'ask its owner to {OWN_REMEDY}'}."
        )
        if not is_own:
            return [self._toward_home(spec, Cancel(reason=reason, fault=fault), now_s)]
        done = DoneEvent(reason="failed", statistics=SessionStatistics(), error=reason, fault=fault)
        return [_to_client(spec, done)]

    def _toward_home(self, spec: SessionSpec, body: LinkBody, now_s: float) -> Send:
        """In a session that has not begun here: nothing is committed, nothing received."""
        peer = spec.roles.topology.toward_home(self.party) or spec.home
        return Peer(spec.session, now_s, peer).send(body, Prefix(spec.session), now_s)


def _to_client(spec: SessionSpec, event: Event) -> Send:
    return Send("client", ClientEvent(spec.session, event))

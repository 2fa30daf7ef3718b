"""Everything that a party with private documents sends, and how much more probable it is with them than without.

One honest party, as its coordinator, decoder, aggregator, drafter and accountant are; a peer that means ill and knows
all that the party knows but its noise and its documents; and a person who asks again, interrupts and restarts. A `Life`
is a plan of what they do, drawn from a seed, which is played over two sets of documents. Both times they do the same as
long as the same was sent.

Noise is made explicit: every draw asks a `Tape`, which holds the noise of each seed as an interval of [0, 1) and gives
the token in whose part of the distribution the noise lies. So draws with one noise depend on each other as they would,
and the probability of all tokens together is exact: the product of the parts that the intervals keep.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tandem.actors import decoder as actor
from tandem.aggregation.distributions import Distribution
from tandem.codecs import TopP
from tandem.config.parties import PartyConfig
from tandem.engine import drafter as drafting
from tandem.engine import privacy
from tandem.engine.prompt import Prompt
from tandem.errors import Code, Fault, ProtocolError
from tandem.messages import (
    End,
    LinkBody,
    LinkFrame,
    Open,
    Rejoin,
    Resync,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    Verdict,
    Vote,
    decode_link,
    encode,
)
from tandem.modes import SessionSpec
from tandem.protocol.decoding import DecodingSession, DecodingTable, Prefill
from tandem.protocol.log import Prefix, extend_digest
from tandem.protocol.routes import Send
from tandem.protocol.services import AggregatingTable
from tandem.protocol.session import Session
from tandem.protocol.table import CoordinatorTable
from tandem.topology import SERVER, Party
from tandem_lab.simulation.hostile import Forger
from tandem_lab.simulation.specs import make_spec
from tandem_lab.simulation.world import NEVER, VOCAB, number, stop_rule

CODEC = TopP(0.9)
PLACES = ("mirror", "device", "speculative", "worker")
"""Whose documents they are: the device's in mode dual, by placement, where it drafts for the cloud, or a worker's."""
PAIRS = ("none", "empty", "refused", "filter", "removed", "changed")
"""What the other documents are: none at all; an index without any; a search that fails; a filter that names what no
document has; one document less; others."""
ABSENT = ("none", "empty", "refused", "filter")
"""Where one of the two has none."""
Found = tuple[str, ...] | None
"""The texts that a search gives; None: it is refused."""


class Differs(AssertionError):
    """What is sent shows for certain which documents there are."""


# ---- noise ---------------------------------------------------------------------------------------------------------


class Tape:
    """The noise of one life, and the probability of the tokens that it gave."""

    def __init__(self, pick: Callable[[int, Sequence[float]], int]) -> None:
        """pick: a token, by the number of the draw and the probabilities of all tokens given what was drawn before."""
        self._pick = pick
        self._left: dict[tuple[int, int], tuple[float, float]] = {}  # of each noise, by seed and step
        self.tokens: list[int] = []
        self.log_probability = 0.0

    def draw(self, noise: tuple[int, int], distribution: Distribution) -> int:
        """The token of one draw."""
        dense = distribution.dense(VOCAB)
        edges = np.concatenate([[0.0], np.cumsum(dense / dense.sum())])
        low, high = self._left.get(noise, (0.0, 1.0))
        parts = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0.0, None) / (high - low)
        token = self._pick(len(self.tokens), parts.tolist())
        self.tokens.append(token)
        if not parts[token]:
            raise Differs(f"token {token} is impossible as draw {len(self.tokens)}")
        self.log_probability += math.log(parts[token])
        self._left[noise] = max(low, float(edges[token])), min(high, float(edges[token + 1]))
        return token

    def rule(self, name: str, temperature: float) -> TapeRule:
        """In the place of `proposal_rule`."""
        return TapeRule(self)


@dataclass(frozen=True)
class TapeRule:
    """A rule of proposals whose noise is a tape's."""

    tape: Tape
    name: str = "coupled"
    needs_drafts: bool = False

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """A draft."""
        return self.tape.draw((seed, step), distribution)

    def choose(
        self, target: Distribution, proposed: int | None, draft: object = None, *, seed: int, step: int
    ) -> int:
        """A vote."""
        return self.tape.draw((seed, step), target)


# ---- the party -----------------------------------------------------------------------------------------------------


class Reader:
    """A retriever and a model of `VOCAB` tokens, whose rows differ by the text in them."""

    def __init__(self, seed: int, search: Callable[[], Found], sharpness: float) -> None:
        self._seed, self._search, self._sharpness = seed, search, sharpness
        self._rows: dict[str, tuple[str, ...]] = {}

    def retrieve(self, request: RetrieveRequest) -> RetrieveResult | RetrieveFailed:
        texts = self._search()
        if texts is None:
            fault = Fault(code=Code.INVALID, option="device_filter")
            return RetrieveFailed(session=request.session, reason="'colour' is none of source.", fault=fault)
        scores = tuple(1.0 / (1 + number(text) % 7) for text in texts)
        names = tuple(f"{number(text):x}" for text in texts)
        return RetrieveResult(
            session=request.session, ids=names, texts=texts, scores=scores, retrieve_us=len(texts)
        )

    def open(self, session: str, query: str, documents: Sequence[str], *args: Any, **kwargs: Any) -> Prompt:
        self._rows[session] = rows = tuple(documents) or ("",)
        return Prompt(((1,),) * len(rows), (), tuple(range(len(rows))), (), ())

    def close(self, session: str) -> None:
        self._rows.pop(session, None)

    def next_logits(self, session: str, tokens: Sequence[int]) -> object:
        return self.forward({session: tokens}, {})

    def question_likelihoods(self, session: str) -> tuple[float, ...]:
        return tuple(-(number(self._seed, "question", text) % 1000) / 100 for text in self._rows[session])

    def forward(
        self,
        answers: Mapping[str, Sequence[int]],
        num_logits: Mapping[str, int],
        *,
        is_stale: object = None,
    ) -> list[np.ndarray]:
        return [
            self._last_logits(session, tokens, num_logits.get(session, 1))
            for session, tokens in answers.items()
        ]

    def _last_logits(self, session: str, tokens: Sequence[int], num_logits: int) -> np.ndarray:
        ends = range(len(tokens) + 1 - num_logits, len(tokens) + 1)
        return np.stack(
            [
                np.stack([self._logits(text, tuple(tokens[:end])) for end in ends])
                for text in self._rows[session]
            ]
        )

    def _logits(self, text: str, tokens: tuple[int, ...]) -> np.ndarray:
        common = np.random.default_rng(number(self._seed, tokens)).standard_normal(VOCAB)
        own = np.random.default_rng(number(self._seed, text, tokens)).standard_normal(VOCAB)
        return (common + self._sharpness * own * bool(text)).astype(np.float32)


class Victim:
    """The actors of the party, which hand each other messages at once; what it sends is kept."""

    def __init__(self, party: str, settings: PartyConfig, reader: Reader, sent: list[bytes]) -> None:
        self.party, self._settings, self._reader, self._sent = party, settings, reader, sent
        self.now_s = 0.0
        self.queue = CoordinatorTable(party, lambda spec: stop_rule(spec.sampling.max_new_tokens, NEVER))
        self._aggregator = AggregatingTable(party, CODEC)
        self._decoder, self._drafters = self._start_decoder()

    def _start_decoder(self) -> tuple[DecodingTable, dict[int, drafting.Drafter]]:
        return DecodingTable(self.party, is_private=True), {}

    def restart_decoder(self) -> None:
        """Its process is another one."""
        self._decoder, self._drafters = self._start_decoder()
        self.deliver(self.queue.restart("decoder"))

    def deliver(self, sends: Sequence[Send]) -> None:
        """Messages of the party, and all that follows from them."""
        waiting = list(sends)
        while waiting:
            send = waiting.pop(0)
            match send.to:
                case "peer":
                    self._sent.append(encode(without_times(send.message)))
                case "decoder":
                    if isinstance(send.message, End):
                        self._drafters.pop(send.message.session, None)
                    waiting += self._decoder.receive(send.message)
                case "aggregator":
                    waiting += self._aggregator.receive(send.message)
                case "draft_queue":
                    waiting += self.queue.receive(send.message, self.now_s)
                case "retriever":
                    waiting += self._decoder.receive(self._reader.retrieve(send.message))
            waiting = waiting or self._work()

    def _work(self) -> list[Send]:
        """What the model's next job sends."""
        while (job := self._decoder.next_job()) is not None:
            session = self._decoder.sessions[job.session]
            if isinstance(job, Prefill):
                self._reader.close(str(job.session))
                results = actor.compute_prompts(self._reader, [job], self._open, lambda job: True)  # type: ignore[arg-type]
            else:
                results = actor.compute_drafts(self._reader, self._drafter, [job], [session])  # type: ignore[arg-type,assignment]
            (result,) = results
            if isinstance(result, Exception):
                raise result
            if isinstance(result, actor.PrefillResult):
                sends = session.finish_prefill(
                    result.prefill_us, (), result.result.documents, result.question
                )
            else:
                sends = session.finish(job, result)  # type: ignore[arg-type]
            if sends:
                return sends
        return []

    def _open(self, job: Prefill) -> Prompt:
        return self._reader.open(str(job.session), job.query, job.documents)

    def _drafter(self, session: DecodingSession) -> drafting.Drafter:
        spec = session.spec
        if spec.session not in self._drafters:
            bounds = privacy.make_privacy(self._settings, spec.sampling.temperature, lambda sentence: None)
            self._drafters[spec.session] = actor.make_drafter(CODEC, spec, self.party, bounds)
        return self._drafters[spec.session]


def without_times(frame: LinkFrame) -> LinkFrame:
    """What is sent but for how long a draft took."""
    if isinstance(frame.body, Vote):
        return replace(frame, body=replace(frame.body, decode_us=0))
    return frame


# ---- the peer ------------------------------------------------------------------------------------------------------


class Peer:
    """It knows the state of the party's coordinator, and answers, decides, takes back and forges as it likes."""

    def __init__(self, rng: random.Random, spec: SessionSpec, name: str, victim: str) -> None:
        self._rng, self.spec, self.name = rng, spec, name
        self._forger = Forger(rng, spec, name, victim)
        self._numbers = itertools.count(1)
        self._haste = rng.choice([1, 2, 16])  # tokens of a verdict
        self._regret = rng.choice([0.0, 0.05, 0.2])  # how often it takes tokens back

    def open(self) -> LinkFrame:
        """The query, where it asks."""
        prefix = Prefix(self.spec.session)
        return self.frame(Open(spec=self.spec.to_json()), 0, prefix)

    def act(self, session: Session) -> LinkFrame:
        """What it sends next."""
        prefix, view = session.prefix, session.peers[self.name].view
        kind = self._rng.random()
        if kind < 0.12:
            with contextlib.suppress(ProtocolError):  # an integer that no frame can hold
                return decode_link(encode(self._forger.forge(session)))
        if kind < 0.12 + self._regret:
            if session.routes.is_authority:
                return self.frame(Rejoin(incarnation=self._rng.getrandbits(32)), view, prefix)
            return self.frame(self._take_back(prefix), view + 1, prefix)
        return self.frame(self._go_on(session), view, prefix)

    def frame(self, body: LinkBody, view: int, prefix: Prefix) -> LinkFrame:
        """A body of its own, sent on what the party has committed."""
        return LinkFrame(
            session=self.spec.session,
            view=view,
            number=next(self._numbers) if isinstance(body, Vote | Verdict) else 0,
            committed=len(prefix),
            committed_digest=prefix.digest,
            stamp=1,
            echo=0,
            held_us=0,
            body=body,
        )

    def _take_back(self, prefix: Prefix) -> Resync:
        """To the start, or to anywhere."""
        kept = self._rng.choice([0, self._rng.randrange(len(prefix) + 1)])
        return Resync(decider=self.spec.roles.topology.index(self.name), tokens=tuple(prefix.tokens[:kept]))

    def _go_on(self, session: Session) -> LinkBody:
        """What brings the answer on: a vote, or in the modes with proposals a proposal or a verdict."""
        spec, prefix, rng = self.spec, session.prefix, self._rng
        if spec.decoding.mode == "dual":
            weights = (rng.choice([-2.0, 0.0, 0.5]),) if spec.roles.weighs_by_documents else ()
            return Vote(step=len(prefix), digest=prefix.digest, tokens=(self._token(),), log_weights=weights)
        if spec.decoding.mode == "federated" and rng.random() < 0.7:
            tokens = tuple(self._token() for _ in range(rng.choice([0, 1, 2, 4])))
            return Vote(step=len(prefix), digest=prefix.digest, tokens=tokens)
        most = spec.sampling.max_new_tokens - len(prefix)
        tokens = tuple(self._token() for _ in range(min(most, rng.choice([1, self._haste]))))
        drafted = follow(session, most) if rng.random() < 0.7 else []
        return Verdict(
            step=len(prefix),
            tokens=tuple(drafted) or tokens,
            accepted=(0,),
            acceptance=(),
            next_decider=spec.roles.topology.index(self.name),
        )

    def _token(self) -> int:
        """Of a few, so that prefixes come again."""
        return self._rng.randrange(2)


# ---- lives ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Life:
    """A plan, drawn from a seed."""

    seed: int
    place: str  # of PLACES
    pair: str  # of PAIRS
    spec: SessionSpec  # of the first query
    bound: float  # c
    budget: float  # B; 0: none
    sharpness: float  # how much documents change logits
    num_documents: int
    num_acts: int
    most_draws: int
    restarts: float  # how often all processes end

    @property
    def party(self) -> str:
        """Whose documents they are."""
        return "worker-1" if self.place == "worker" else Party.DEVICE

    @property
    def peer(self) -> str:
        """The one that means ill."""
        return SERVER if self.place == "worker" else Party.CLOUD

    @property
    def log_bound(self) -> float:
        """What is promised of one draw."""
        return self.bound if self.pair in ABSENT else 2 * self.bound

    def search(self, side: int, number_of: int) -> Found:
        """The texts that the `number_of`-th search of this life finds; they change while it lasts."""
        rng = random.Random(number("search", self.seed, number_of // 2))
        texts = tuple(f"note {rng.randrange(99)}" for _ in range(self.num_documents))
        if side == 0:
            return texts
        others: dict[str, Found] = {
            "refused": None,
            "removed": texts[1:],
            "changed": (*texts[1:], "another"),
        }
        return others.get(self.pair, ())


def make_life(seed: int, *, is_small: bool = False) -> Life:
    """is_small: so small that all that may be sent can be listed."""
    rng = random.Random(number("life", seed))
    place, pair = rng.choice(PLACES), rng.choice(PAIRS)
    num_documents = rng.choice([1, 2, 3])
    is_worker = place == "worker"
    values: dict[str, Any] = dict(
        session=seed + 1,
        seed=7,
        vocab_size=VOCAB,
        race_depth=8,
        temperature=rng.choice([0.3, 0.7, 1.0, 1.5]),
        top_k=2 if is_small else rng.choice([0, 0, 3]),
        min_p=0.0 if is_small else rng.choice([0.0, 0.0, 0.1]),
        max_new_tokens=3 if is_small else rng.choice([4, 8, 60]),
        max_window=rng.choice([1, 2, 4]),
        question_weight=rng.choice([0.0, 1.0]),
        evidence_weight=rng.choice([0.0, 1.0]),
        on_peer_loss=rng.choice(["wait", "continue"]),
        device_filter='{"colour": "red"}' if pair in ("refused", "filter") and not is_worker else "",
    )
    if is_worker:
        workers = ("worker-1", "worker-2")
        values |= dict(
            mode="federated", draft_rule="lottery", documents=dict.fromkeys(workers, num_documents)
        )
        values |= dict(workers=workers, weights=rng.choice([(), (0.5, 0.5)]))
    elif place == "speculative":
        values |= dict(mode="speculative", device_documents=num_documents, max_proposal=rng.choice([1, 2, 4]))
        values |= dict(pacing=rng.choice(["stop_and_wait", "pipelined"]))
    else:
        values |= dict(draft_rule="lottery", placement=place, device_documents=num_documents)
        values |= dict(max_peer_share=rng.choice([1.0, 0.5]))
    return Life(
        seed=seed,
        place=place,
        pair=pair,
        spec=make_spec(**values),
        bound=rng.choice([0.1, 0.5, 1.0, 2.0]),
        budget=rng.choice([0.0, 0.05, 0.3, 1.0, 3.0]),
        sharpness=rng.choice([0.3, 1.0, 3.0]),
        num_documents=num_documents,
        num_acts=rng.choice([4, 6, 8]) if is_small else rng.choice([6, 12, 30, 60]),
        most_draws=6 if is_small else 80,
        restarts=rng.choice([0.0, 0.3]) if is_small else 0.05,
    )


class Played(NamedTuple):
    """What came of it."""

    sent: tuple[bytes, ...]
    spent: privacy.Spent
    happened: Counter[str]


def play(life: Life, side: int, tape: Tape, folder: Path) -> Played:
    """The life over the documents of one side. folder: of the accountant, empty; it is emptied again."""
    sent, searches, happened = list[bytes](), itertools.count(), Counter[str]()
    path = folder / "privacy.json"
    reader = Reader(life.seed, lambda: life.search(side, next(searches)), life.sharpness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privacy, "ledger_path", lambda: path)
        patch.setattr(os, "fsync", lambda descriptor: None)  # a power failure is no part of it
        patch.setattr(drafting, "proposal_rule", tape.rule)
        patch.setattr(actor, "elapsed_us", lambda started_s: 1 + len(life.search(side, 0) or ()))
        _live(life, random.Random(number("acts", life.seed)), reader, sent, tape, happened)
    spent = privacy.Ledger(path).spent()
    happened["budget ends"] = int(spent.num_draws < len(tape.tokens))
    for left in folder.glob("*privacy.json"):
        left.unlink()
    return Played(tuple(sent), spent, happened)


def _live(
    life: Life,
    rng: random.Random,
    reader: Reader,
    sent: list[bytes],
    tape: Tape,
    happened: Counter[str],
) -> None:
    place = itertools.count()

    def start() -> Victim:
        """The party's processes; its documents lie elsewhere by now."""
        settings = PartyConfig(index=f"/notes-{next(place)}", privacy=life.bound, privacy_budget=life.budget)
        return Victim(life.party, settings, reader, sent)

    victim, spec, peers = start(), life.spec, dict[int, Peer]()

    def ask(spec: SessionSpec) -> None:
        peers[spec.session] = peer = Peer(rng, spec, life.peer, life.party)
        if life.peer == spec.home:
            victim.deliver(victim.queue.receive(peer.open(), victim.now_s, life.peer))
        else:
            victim.deliver(victim.queue.open(spec, victim.now_s))

    ask(spec)
    for _ in range(life.num_acts):
        if len(tape.tokens) >= life.most_draws:
            return
        victim.now_s += rng.choice([0.01, 0.06, 0.06, 1.2])
        sessions = [each for name, each in victim.queue.sessions.items() if name in peers]
        kind = rng.random()
        if not sessions or rng.random() < life.restarts:  # all is lost, and the very same is asked again
            now_s, victim = victim.now_s, start()
            victim.now_s = now_s
            happened["restart"] += 1
            ask(rng.choice([life.spec, spec]))
            continue
        session = rng.choice(sessions)
        if kind < 0.06:
            victim.restart_decoder()
            happened["decoder restarts"] += 1
        elif kind < 0.12:  # the same question with the same seed, in parallel
            spec = replace(life.spec, session=life.spec.session + len(peers) * 1000)
            ask(spec)
            happened["parallel"] += 1
        elif kind < 0.16 and session.routes.is_home and len(session.prefix) > 1:  # interrupted, asked again
            victim.deliver(victim.queue.cancel(session.spec.session, victim.now_s))
            ask(replace(session.spec, session=session.spec.session + len(peers) * 1000))
            happened["interruption"] += 1
        elif kind < 0.3:
            victim.deliver(victim.queue.tick(victim.now_s))
        else:
            frame, view = peers[session.spec.session].act(session), session.log.view
            victim.deliver(victim.queue.receive(frame, victim.now_s, life.peer))
            happened["resync"] += session.log.view > view or session.log.adopted_view > view


# ---- comparing -----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """All that was sent in one life."""

    log_ratio: float  # of its probability with the documents of one side, and of the other
    num_draws: int
    happened: Counter[str]


def compare(life: Life, folder: Path) -> Compared:
    """One life over both sets of documents, with the same tokens. Raises Differs where that cannot be."""
    rng, side = random.Random(number("tokens", life.seed)), life.seed % 2
    is_by_law = rng.random() < 0.5

    def pick(draw: int, parts: Sequence[float]) -> int:
        weights = parts if is_by_law else [float(part > 0) for part in parts]
        return rng.choices(range(VOCAB), weights)[0]

    first = Tape(pick)
    one = play(life, side, first, folder)

    def repeat(draw: int, parts: Sequence[float]) -> int:
        if draw >= len(first.tokens):
            raise Differs(f"{draw + 1} draws instead of {len(first.tokens)}")
        return first.tokens[draw]

    second = Tape(repeat)
    other = play(life, 1 - side, second, folder)
    if one.sent != other.sent:
        raise Differs(f"frames differ in {life.place}, {life.pair}")
    for played in (one, other):
        assert not life.budget or played.spent.nats <= life.budget
        assert played.spent.num_draws <= len(first.tokens)
    ratio = first.log_probability - second.log_probability
    return Compared(abs(ratio), len(first.tokens), one.happened + other.happened)


def law_of(life: Life, side: int, folder: Path) -> dict[tuple[bytes, ...], float]:
    """The probability of everything that may be sent in a life, by all tokens that may be drawn."""
    law: dict[tuple[bytes, ...], float] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        forced = waiting.pop()

        def pick(draw: int, parts: Sequence[float], forced: list[int] = forced) -> int:
            if draw < len(forced):
                return forced[draw]
            first, *others = (token for token, part in enumerate(parts) if part > 0)
            waiting.extend([*forced, token] for token in others)
            forced.append(first)
            return first

        tape = Tape(pick)
        sent = play(life, side, tape, folder).sent
        law[sent] = law.get(sent, 0.0) + math.exp(tape.log_probability)
    return law


def follow(session: Session, most: int) -> list[int]:
    """The tokens that are proposed after the committed ones, one after another."""
    tokens: list[int] = []
    digest = session.prefix.digest
    while len(tokens) < most and (token := session.ballots.proposed(digest)) is not None:
        tokens.append(token)
        digest = extend_digest(digest, token)
    return tokens

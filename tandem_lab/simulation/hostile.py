"""A peer that knows the protocol and means ill: forged frames at an honest party, and a witness of every token.

The hostile party runs the protocol as an honest one would, so that answers get somewhere, and beside that sends
whatever it likes: verdicts, votes, Resyncs, requests and ends, in turn and out of turn, with right and wrong digests,
views, steps, lengths and weights. It sees all that its victim knows. The witness believes none of the protocol's own
evidence: it keeps what was sent, computes every decision of the victim again from the votes (`modes.reference`), and
explains each committed token by a decision of the victim in its turn, by a verdict of a peer whose turn it was, or by a
Resync of the authority. A token that has no such reason was written by the peer.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import takewhile, zip_longest
from math import inf, nan
from typing import Any

import numpy as np

from tandem.aggregation.race_lists import RaceList
from tandem.aggregation.rules import LOTTERY
from tandem.codecs.votes import MAX_LISTED, WHOLE, cut_vote, read_token, read_vote, write_token
from tandem.errors import ProtocolError
from tandem.messages import (
    Ballot,
    Cancel,
    Done,
    Heartbeat,
    LinkBody,
    LinkFrame,
    ListRequest,
    Logprobs,
    Open,
    Probe,
    Rejoin,
    Resync,
    Sources,
    Tail,
    Verdict,
    VerifyResult,
    Vote,
    decode_link,
    encode,
)
from tandem.modes import SessionSpec, reference, reference_shaping
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.log import Prefix, digests_along, extend_digest
from tandem.protocol.routes import ActorKind
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import is_list_of
from tandem_lab.simulation.scenario import Scenario, by_lottery, make_chain_scenario, voter_of
from tandem_lab.simulation.specs import change_spec, make_spec
from tandem_lab.simulation.virtual import InvariantError
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import EOS, NEVER, VOCAB, codec_for, number

CASES = (
    *(f"hostile-{placement}" for placement in ("mirror", "device", "cloud", "greedy")),
    "hostile-asker",
    "hostile-speculative-cloud",
    "hostile-speculative-device",
    "hostile-worker",
    "hostile-server",
    *(f"hostile-{place}-lottery" for place in ("mirror", "device", "asker", "worker", "server")),
)
"""The cloud in mode dual, by placement; a device in mode dual at its cloud; and both ends of the other modes."""
NUM_FRAMES = 300
"""Forged frames of one run, at most: it ends with the answer."""
BURST = 12
EVERY_S = 0.01
LIMIT_S = 60.0
"""Virtual time of one run. A hostile peer may keep an answer from ending, as one that says nothing may."""
MAX_ITEMS = 60_000
"""Things that a coordinator may hold for one query, counted one by one through all that it refers to."""
KINDS: tuple[tuple[type[LinkBody], int], ...] = (
    (Verdict, 20),
    (Vote, 24),
    (ListRequest, 8),
    (Resync, 6),
    (Rejoin, 3),
    (Done, 6),
    (Open, 2),
    (Sources, 4),
    (Heartbeat, 5),
    (Probe, 2),
)
"""How often each kind is forged. What a peer may end a query with is forged rarely: `ENDS`."""
ENDS = 0.003


class Forger:
    """Frames of one hostile party for one victim.

    Invariant: `distributions` holds that of every forged vote that is one, by its payload and the step that it is for:
    a list belongs to one race.
    """

    def __init__(self, rng: random.Random, spec: SessionSpec, hostile: str, victim: str) -> None:
        self.rng, self.spec, self.hostile, self.victim = rng, spec, hostile, victim
        self.distributions: dict[tuple[bytes, int], list[float]] = {}
        self._codec = codec_for(spec)
        self._index = spec.roles.topology.index(hostile)

    def forge(self, session: Session) -> LinkFrame:
        """The next one. session: all that the victim knows."""
        rng, prefix, link = self.rng, session.prefix, session.peers[self.hostile]
        body = self._body(session)
        count = rng.choice([len(prefix), len(prefix), len(prefix), rng.randrange(len(prefix) + 4), 1 << 40])
        known = prefix.digests[count] if count < len(prefix.digests) else self._digest(session)
        views = [link.view, link.view, link.view, link.view, link.view + 1, max(0, link.view - 1), 1 << 50]
        return LinkFrame(
            session=self.spec.session,
            view=link.view + 1 if isinstance(body, Resync) and rng.random() < 0.7 else rng.choice(views),
            number=rng.choice([0, rng.randrange(1, 40), 1 << 60]),
            received=tuple(rng.randrange(60) for _ in range(rng.choice([0, 0, 3]))),
            committed=count,
            committed_digest=known if rng.random() < 0.9 else rng.randbytes(8),
            stamp=rng.randrange(256),
            echo=rng.randrange(128),
            held_us=rng.choice([0, 1000, 1 << 60]),
            body=body,
        )

    def _body(self, session: Session) -> LinkBody:
        rng = self.rng
        if rng.random() < ENDS:
            return Cancel(reason="Enough.") if rng.random() < 0.5 else Done(is_reply=True)
        kinds, weights = zip(*KINDS, strict=True)
        kind = rng.choices(kinds, weights)[0]
        make: dict[type[LinkBody], Callable[[Session], LinkBody]] = {
            Vote: self._vote, ListRequest: self._request, Resync: self._resync,
            Sources: self._sources, Verdict: self._verdict,
        }  # fmt: skip
        if kind in make:
            return make[kind](session)
        simple: dict[type[LinkBody], LinkBody] = {
            Rejoin: Rejoin(incarnation=rng.getrandbits(32)),
            Done: Done(is_reply=False),
            Open: Open(spec=rng.choice([self.spec.to_json(), "{}", "\0"])),
            Heartbeat: Heartbeat(),
            Probe: Probe(is_reply=rng.random() < 0.5, padding=bytes(rng.choice([0, 1200]))),
        }
        return simple[kind]

    def _party(self) -> int:
        return self.rng.choice([self._index, self._index, self._index, self.rng.randrange(8), 63])

    def _step(self, session: Session) -> int:
        length = len(session.prefix)
        near = [length, length, length, length, length + 1, length + self.rng.randrange(300)]
        return self.rng.choice([*near, max(0, length - 1), 0, 1 << 62])

    def _token(self) -> int:
        return self.rng.choice([self.rng.randrange(VOCAB)] * 30 + [EOS, VOCAB, 1 << 31, 1 << 40])

    def _tokens(self, longest: int) -> tuple[int, ...]:
        return tuple(self._token() for _ in range(self.rng.choice([1, 1, 1, 0, 2, longest, longest + 1])))

    def _digest(self, session: Session) -> bytes:
        """Mostly of the committed prefix, or of one that may follow it, as the victim has drafted or not."""
        rng, prefix = self.rng, session.prefix
        held = [digest for entries in session.ballots.entries.values() for digest in entries]
        return rng.choice(
            [
                *[prefix.digest] * 4,
                rng.choice(held or [prefix.digest]),
                rng.choice(prefix.digests),
                extend_digest(prefix.digest, rng.randrange(VOCAB)),
                rng.randbytes(8),
            ]
        )

    def _log_weight(self) -> float:
        return self.rng.choice([0.0, 0.5, -2.0, 3e38, -3e38, -inf, inf, nan])

    def _payload(self, step: int) -> bytes:
        """A vote: for one token, for any, or no vote at all."""
        rng = self.rng
        if self.spec.rules.draft_rule == LOTTERY:
            return rng.choice([write_token(self._token())] * 16 + [b"", rng.randbytes(rng.randrange(1, 5))])
        dense = np.random.default_rng(rng.getrandbits(32)).dirichlet(np.full(VOCAB, rng.choice([0.05, 1.0])))
        payload = self._codec.encode(dense)
        if not self.spec.rules.has_race_lists:
            self.distributions[payload, step] = [
                float(p) for p in self._codec.decode(payload, VOCAB).dense(VOCAB)
            ]
        else:
            values = read_vote(payload, VOCAB)
            assert not isinstance(values, RaceList)
            depth = rng.choice([1, 2, 5, WHOLE])
            payload = cut_vote(
                payload, depth, VOCAB, seed=self.spec.seed, step=step,
                temperature=self.spec.sampling.temperature,
            )  # fmt: skip
            self.distributions[payload, step] = [float(p) for p in values]
        broken = [payload[:-1], b"", rng.randbytes(rng.randrange(1, 40)), b"\0" + rng.randbytes(4 * VOCAB)]
        return rng.choice([payload] * 16 + broken)

    def certain(self, payload: bytes) -> list[float] | None:
        """The distribution of a vote that is a token; None: it is none."""
        try:
            token = read_token(payload, self.spec.vocab_size)
        except ProtocolError:
            return None
        return [float(token == each) for each in range(VOCAB)]

    def _vote(self, session: Session) -> LinkBody:
        """What a drafter or a voter may say, tokens as the victim may hold them, or any."""
        rng, step, digest = self.rng, self._step(session), self._digest(session)
        proposes = rng.random() < 0.6
        tokens = self._tokens(MAX_PROPOSAL) if proposes else self._follow(session, digest)
        is_odd = rng.random() < 0.03
        is_dual, is_drawn = self.spec.rules.name == "dual", self.spec.rules.draft_rule == LOTTERY
        votes = not proposes or is_dual or rng.random() < 0.1
        count = len(tokens) + (proposes is is_odd) if votes else 0
        is_weighed = self.spec.roles.weighs_by_documents is (rng.random() < 0.97)
        return Vote(
            step=step,
            digest=digest,
            tokens=tokens,
            payloads=tuple(
                self._payload(step + position)
                for position in range(count if not (is_dual and is_drawn) or is_odd else 0)
            ),
            log_weights=tuple(self._log_weight() for _ in range(count)) if is_weighed else (),
            decode_us=rng.choice([0, 1000, 1 << 60]),
        )

    def _follow(self, session: Session, digest: bytes) -> tuple[int, ...]:
        """Tokens that go on behind a prefix as the victim holds it, and then any."""
        tokens: list[int] = []
        while len(tokens) < self.rng.choice([0, 1, 3, 17]):
            token = session.ballots.proposed(digest)
            tokens.append(self.rng.randrange(VOCAB) if token is None else token)
            digest = extend_digest(digest, tokens[-1])
        return tuple(tokens)

    def _verdict(self, session: Session) -> LinkBody:
        rng, num_drafters = self.rng, len(self.spec.roles.drafters)
        tokens = self._tokens(70)
        return Verdict(
            step=self._step(session),
            tokens=tokens,
            accepted=tuple(rng.getrandbits(max(1, len(tokens))) for _ in range(num_drafters)),
            acceptance=rng.choice([(), (rng.randrange(140),) * num_drafters]),
            next_decider=rng.choice([rng.randrange(len(self.spec.parties)), self._index, 63]),
            tail=self._tails(len(tokens)),
        )

    def _tails(self, num_tokens: int) -> tuple[Tail, ...]:
        """Mostly one where there is something to say of others, and none elsewhere."""
        topology, rng = self.spec.roles.topology, self.rng
        has_others = len(topology.peers(self.hostile)) > 1
        is_due = has_others and topology.toward_home(self.hostile) == self.victim
        (count,) = rng.choices([0, 1, 2], [3.0, 14.0, 0.3] if is_due else [14.0, 5.0, 0.3])
        return tuple(self._tail(num_tokens, is_told=is_due is (rng.random() < 0.8)) for _ in range(count))

    def _tail(self, num_tokens: int, *, is_told: bool) -> Tail:
        rng = self.rng
        known = Logprobs(logprob=-1.0, top_ids=(), top_logprobs=())
        voters = tuple(rng.randrange(len(self.spec.parties) + 1) for _ in range(num_tokens))
        return Tail(
            logprobs=(known,) * rng.choice([0, num_tokens]),
            lost=rng.choice([(), (self._party(),)]) if is_told else (),
            last_voters=voters if is_told else (),
        )

    def _request(self, session: Session) -> LinkBody:
        depth = self.rng.choice([0, 1, 4, 40, MAX_LISTED, MAX_LISTED + 1, 1 << 63])
        return ListRequest(step=self._step(session), digest=self._digest(session), depth=depth)

    def _resync(self, session: Session) -> LinkBody:
        rng, tokens = self.rng, list(session.prefix.tokens)
        if tokens and rng.random() < 0.5:
            tokens[rng.randrange(len(tokens))] = self._token()
        tokens = tokens[: rng.choice([len(tokens), rng.randrange(len(tokens) + 1)])]
        tokens += [self._token() for _ in range(rng.choice([0, 1, 40]))]
        return Resync(
            decider=rng.choice([self._index, rng.randrange(len(self.spec.parties)), 63]), tokens=tuple(tokens)
        )

    def _sources(self, session: Session) -> Sources:
        marks = tuple(self.rng.randbytes(2).hex() for _ in range(self.rng.randrange(4)))
        return Sources(
            party=self._party(), ids=marks, retrieve_us=self.rng.getrandbits(60), prefill_us=0, notes=()
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What the victim's own aggregator decided on one prefix."""

    tokens: tuple[int, ...]
    next_decider: str


class Witness:
    """Why the victim committed each of its tokens. Raises InvariantError where there is no reason by right."""

    def __init__(
        self,
        spec: SessionSpec,
        victim: str,
        forger: Forger,
        voters: dict[str, Any],
        check_own: Callable[[Ballot, str, int, tuple[int, ...]], None],
    ) -> None:
        """voters: what each honest party votes after some tokens, and the hostile one as long as it is honest.

        check_own: raises InvariantError unless an honest party's payload in a ballot is its vote on these tokens.
        """
        self.spec, self.victim, self.forger, self.voters = spec, victim, forger, voters
        self.hostile = forger.hostile
        self.tokens: list[int] = []
        self.num_own = self.num_by_verdict = self.num_adopted = self.num_wild = 0
        roles = spec.roles
        self._check_own = check_own
        self._may_decide = roles.role(self.hostile).decides and not spec.rules.all_decide
        self._may_rewrite = self.hostile == roles.topology.authority and victim != roles.topology.home
        self._turns = {spec.rules.first_decider}
        self._views = (0, 0)
        self._votes: set[tuple[bytes, bytes, float | None]] = set()  # digest, payload, log weight
        self._verdicts: dict[
            int, set[tuple[int, str | None]]
        ] = {}  # by step: token, who is next if it is the last
        self._resyncs: dict[tuple[int, ...], set[int]] = {}  # tokens: deciders
        self._ballots: dict[bytes, list[Ballot]] = {}  # that were on the committed prefix
        self._decisions: dict[bytes, list[Decision]] = {}

    # ---- what is sent ----------------------------------------------------------------------------------------------

    def hear(self, body: LinkBody) -> None:
        """The hostile party sends this, by right or not."""
        match body:
            case Vote():
                digests = digests_along(body.digest, takewhile(lambda token: token < VOCAB, body.tokens))
                payloads = body.payloads or map(write_token, body.tokens)  # of a draft that is a vote
                for digest, row in zip(digests, zip_longest(payloads, body.log_weights), strict=False):
                    self._votes.add((digest, *row))
            case Verdict():
                self._hear_verdict(body)
            case Resync():
                self._resyncs.setdefault(body.tokens, set()).add(body.decider)
            case _:
                pass

    def _hear_verdict(self, verdict: Verdict) -> None:
        parties, last = self.spec.parties, len(verdict.tokens) - 1
        for position, token in enumerate(verdict.tokens):
            is_last = position == last
            after = parties[verdict.next_decider] if is_last and verdict.next_decider < len(parties) else None
            self._verdicts.setdefault(verdict.step + position, set()).add((token, after))

    # ---- what the victim decides -----------------------------------------------------------------------------------

    def check_ballot(self, ballot: Ballot, committed: Sequence[int]) -> None:
        """Every vote in it was cast for exactly these tokens, by whom it is said to be of."""
        prefix = Prefix(self.spec.session, committed)
        if ballot.digest != prefix.digest:
            return
        self._ballots.setdefault(ballot.digest, []).append(ballot)
        names = [self.spec.parties[voter] for voter in ballot.voters]
        digest, tokens = prefix.digest, tuple(committed)
        for row in range(len(ballot.payloads) // len(names)):
            for column, name in enumerate(names):
                position = row * len(names) + column
                if name != self.hostile:
                    self._check_own(ballot, name, position, tokens)
                    continue
                weight = ballot.log_weights[position] if ballot.log_weights else None
                if (digest, ballot.payloads[position], weight) not in self._votes:
                    raise InvariantError(
                        f"{self.victim} counts a vote that {name} never cast on step {len(tokens)}"
                    )
            if row < len(ballot.tokens):
                tokens = (*tokens, ballot.tokens[row])
                digest = extend_digest(digest, ballot.tokens[row])

    def decide(self, result: VerifyResult, committed: Sequence[int]) -> None:
        """The victim's aggregator has decided: the same again, by the reference, from a ballot that it was given."""
        ballots = self._ballots.get(result.digest)
        if result.digest != Prefix(self.spec.session, committed).digest or ballots is None:
            return  # an authority had the victim adopt other tokens, and these again; its ballot is of an older view
        if not any(self._agrees(ballot, result, tuple(committed)) for ballot in ballots):
            raise InvariantError(
                f"{self.victim} decides {result.tokens} at step {len(committed)}, its votes do not"
            )
        after = self.spec.parties[result.next_decider]
        self._decisions.setdefault(result.digest, []).append(Decision(tuple(result.tokens), after))

    def _agrees(self, ballot: Ballot, result: VerifyResult, tokens: tuple[int, ...]) -> bool:
        if ballot.voters != result.voters:
            return False
        for row, token in enumerate(result.tokens):
            if (row + 1) * len(ballot.voters) > len(ballot.payloads):
                return False
            if self._expect(ballot, row, tokens) not in (None, token):
                return False
            tokens = (*tokens, token)
        return True

    def _expect(self, ballot: Ballot, row: int, tokens: tuple[int, ...]) -> int | None:
        """What these votes give after these tokens; None: a vote is no distribution, or the drafter continues alone."""
        spec, names = self.spec, [self.spec.parties[voter] for voter in ballot.voters]
        if not set(names) <= set(spec.roles.voters):
            return None
        votes: list[reference_shaping.Forecast] = []
        for column, name in enumerate(names):
            position = row * len(names) + column
            weight = ballot.log_weights[position] if ballot.log_weights else 0.0
            mass = self._mass(name, ballot.payloads[position], tokens)
            if mass is None:
                self.num_wild += 1
                return None
            votes.append(reference_shaping.Forecast(mass, weight))
        weights = None if spec.roles.weighs_by_documents else spec.roles.shares(ballot.voters)
        most = [1.0 if name == spec.home else spec.max_peer_share for name in names]
        shares = reference_shaping.weigh_votes(votes, weights, most)
        seed = spec.seed if spec.sampling.temperature else None
        return reference.choose(votes, shares, seed, len(tokens), spec.rules.draft_rule == LOTTERY)

    def _mass(self, name: str, payload: bytes, tokens: tuple[int, ...]) -> list[float] | None:
        voter = self.voters[name]
        if name == self.hostile and self.spec.rules.draft_rule == LOTTERY:
            return self.forger.certain(payload)
        if name != self.hostile:
            return list(voter(tokens).probabilities)
        if (payload, len(tokens)) in self.forger.distributions:
            return self.forger.distributions[payload, len(tokens)]
        vote = voter.payload(tokens)
        is_list = self.spec.rules.has_race_lists and is_list_of(payload, vote, self.spec, len(tokens))
        return list(voter(tokens).probabilities) if payload == vote or is_list else None

    # ---- what the victim commits -----------------------------------------------------------------------------------

    def look(self, session: Session) -> None:
        """After every event."""
        views, tokens = (session.log.view, session.log.adopted_view), session.prefix.tokens
        if views == self._views and len(tokens) == len(self.tokens):
            return
        if views[1] != self._views[1]:
            self._adopt(tuple(tokens))
        elif views[0] != self._views[0]:
            self._turns = {self.spec.rules.first_decider}
        self._views = views
        if tokens[: len(self.tokens)] != self.tokens:
            raise InvariantError(f"{self.victim} takes back tokens: {self.tokens} became {tokens}")
        while len(self.tokens) < len(tokens):
            self._explain(tokens, session)

    def _adopt(self, tokens: tuple[int, ...]) -> None:
        if not self._may_rewrite or tokens not in self._resyncs:
            raise InvariantError(f"{self.hostile} had {self.victim} adopt {tokens}")
        self._turns = {
            self.spec.parties[decider]
            for decider in self._resyncs[tokens]
            if decider < len(self.spec.parties)
        }
        self.tokens = list(tokens)
        self.num_adopted += 1

    def _explain(self, tokens: list[int], session: Session) -> None:
        step = len(self.tokens)
        is_own = self.spec.rules.all_decide or session.decides_alone or self.victim in self._turns
        digest = session.prefix.digests[step]
        own = [
            decision
            for decision in (self._decisions.get(digest, ()) if is_own else ())
            if tokens[step:][: len(decision.tokens)] == list(decision.tokens)[: len(tokens) - step]
        ]
        if own:  # of several, as before and after a loss, the coordinator took one
            longest = max((decision.tokens for decision in own), key=len)
            some = longest[: len(tokens) - step]
            self.tokens += some
            self.num_own += len(some)
            self._turns = {decision.next_decider for decision in own}
            return
        nexts = {
            after or self.hostile for token, after in self._verdicts.get(step, ()) if token == tokens[step]
        }
        if not (self._may_decide and self.hostile in self._turns and nexts):
            raise InvariantError(
                f"{self.victim} committed {tokens[step]} at step {step}, which neither it nor anybody whose turn it "
                f"was ({', '.join(sorted(self._turns))}) decided"
            )
        self.tokens.append(tokens[step])
        self.num_by_verdict += 1
        self._turns = nexts


def count_items(thing: Any, seen: set[int] | None = None) -> int:
    """Things in all containers that `thing` refers to: a measure of memory that needs no names. Bytes count by 64."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | int | float | str | SessionSpec) or callable(thing):
        return 1
    seen.add(id(thing))
    if isinstance(thing, bytes):
        return 1 + len(thing) // 64
    if isinstance(thing, dict):
        return 1 + sum(count_items(each, seen) for item in thing.items() for each in item)
    if isinstance(thing, list | tuple | set | frozenset | deque):
        return 1 + sum(count_items(each, seen) for each in thing)
    names = (
        [field.name for field in fields(thing)]
        if is_dataclass(thing)
        else vars(thing)
        if hasattr(thing, "__dict__")
        else ()
    )
    return 1 + sum(count_items(getattr(thing, name), seen) for name in names)


class HostileRun(WatchedRun):
    """One query with a hostile party: frames are forged at its victim, whose every token must have a reason."""

    def __init__(
        self, scenario: Scenario, trace: EventLog, hostile: str, victim: str, num_frames: int
    ) -> None:
        super().__init__(scenario, trace)
        self.hostile, self.victim, self._num_left = hostile, victim, num_frames
        rng = random.Random(number("hostile", scenario.seed))
        voters = {party: voter_of(scenario, party) for party in scenario.spec.roles.voters}
        self._forger = Forger(rng, scenario.spec, hostile, victim)
        self.witness = Witness(scenario.spec, victim, self._forger, voters, self.check_vote)
        self.at(EVERY_S, self._inject, victim)

    def _inject(self) -> None:
        for frame in self._forge():
            self.trace.add(self.now_s, "forged", frame)
            self.deliver(
                self.victim, self.parties[self.victim].queue.receive(frame, self.now_s, self.hostile)
            )
            self.after_event(self.victim)
        if self._num_left > 0:
            self.at(self.now_s + EVERY_S * self._forger.rng.random(), self._inject, self.victim)

    def _forge(self) -> list[LinkFrame]:
        """The next burst, encoded and read again as on a link; what no message is stays behind, counted."""
        session, rng, frames = self.session(self.victim), self._forger.rng, list[LinkFrame]()
        for _ in range(min(BURST, self._num_left) if session is not None else 0):
            assert session is not None
            self._num_left -= 1
            data = bytearray(encode(self._forger.forge(session)))
            if rng.random() < 0.03:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            try:
                frame = decode_link(bytes(data))
            except ProtocolError:
                self.counts["hostile frames that cannot be read"] += 1
                continue
            self.counts["hostile frames"] += 1
            self.witness.hear(frame.body)
            frames.append(frame)
        return frames

    def receive_frame(self, party: str, source: str, frame: LinkFrame) -> None:
        """As the base class; the witness hears what the hostile party says by the protocol, too."""
        if (party, source) == (self.victim, self.hostile):
            self.witness.hear(frame.body)
        super().receive_frame(party, source, frame)

    def receive(self, party: str, to: ActorKind, message: Any) -> None:
        """As the base class; the witness sees the victim's ballots and decisions."""
        session = self.session(party)
        if party == self.victim and session is not None:
            if isinstance(message, Ballot):
                self.witness.check_ballot(message, session.prefix.tokens)
            elif isinstance(message, VerifyResult) and message.tokens:
                self.witness.decide(message, session.prefix.tokens)
        super().receive(party, to, message)

    def check_ballot(self, party: str, ballot: Ballot) -> None:
        """The witness does."""

    def check_followed(self, party: str, job: Any) -> None:
        """A hostile drafter's proposals are anything."""

    def after_event(self, party: str) -> None:
        """Every token of the victim has a reason."""
        session = self.session(self.victim)
        if session is not None:
            self.committed = list(session.prefix.tokens)
            self.witness.look(session)

    def end(self) -> None:
        """The run is over: how much the victim holds, and what happened."""
        session, witness = self.session(self.victim), self.witness
        if session is not None and (num_items := count_items(session)) > MAX_ITEMS:
            raise InvariantError(f"{self.victim} holds {num_items} things")
        self.counts["hostile frames refused"] += self.parties[self.victim].queue.num_refused_frames
        self.counts["tokens by own decision"] += witness.num_own
        self.counts["tokens by a peer's right"] += witness.num_by_verdict
        self.counts["tokens adopted"] += witness.num_adopted
        self.counts["votes that are no distribution"] += witness.num_wild


def play_hostile(
    case: str, seed: int, trace: EventLog, num_frames: int = NUM_FRAMES
) -> tuple[int, Counter[str]]:
    """One run of `CASES`: tokens that the victim committed, and what happened. Raises InvariantError.

    A hostile peer need not let an answer end.
    """
    kind = case.removeprefix("hostile-").removesuffix(f"-{LOTTERY}")
    make = _make_chain if kind.startswith("speculative") or kind in ("worker", "server") else _make_pair
    scenario, hostile, victim = make(kind, seed)
    if case.endswith(LOTTERY):
        scenario = by_lottery(scenario)
    run = HostileRun(scenario, trace, hostile, victim, num_frames)
    run.run(LIMIT_S)
    run.end()
    return len(run.witness.tokens), run.counts


def _make_pair(kind: str, seed: int) -> tuple[Scenario, str, str]:
    """A query in mode dual, who is hostile and who its victim."""
    rng = random.Random(number("hostile pair", seed))
    placement = rng.choice(["mirror", "device", "cloud", "greedy"]) if kind == "asker" else kind
    first_end = rng.choice([NEVER, 8])
    spec = make_spec(
        session=seed + 1,
        seed=seed,
        eos_token_ids=(EOS,),
        draft_rule="coupled",
        temperature=rng.choice([0.0, 1.0]),
        placement="random" if placement == "greedy" and rng.random() < 0.7 else placement,
        max_new_tokens=24,
        device_documents=rng.choice([0, 2]),
        cloud_documents=rng.choice([0, 3]),
        evidence_weight=rng.choice([0.0, 1.0]),
        max_window=rng.choice([1, 4, 16]),
        on_peer_loss=rng.choice(["wait", "continue", "continue"]),
        peer_loss_margin_s=0.1,
        race_depth=rng.choice([0, 1, 2, 2]),
        vocab_size=VOCAB,
        max_peer_share=_pick_limit(seed),
    )
    link, model_s = Link(delay_s=rng.choice([0.0, 0.01])), dict.fromkeys(map(str, PARTIES), 0.01)
    scenario = Scenario(seed=seed, spec=spec, link=link, first_end=first_end, model_s=model_s)
    hostile = Party.DEVICE if kind == "asker" else Party.CLOUD
    return scenario, hostile, hostile.other


def _pick_limit(seed: int) -> float:
    """Most that the hostile party's vote counts. Drawn apart, so that recorded seeds keep the rest."""
    return random.Random(number("limit", seed)).choice([1.0, 1.0, 0.5, 0.3])


def _make_chain(kind: str, seed: int) -> tuple[Scenario, str, str]:
    """A query in another mode, likewise."""
    rng = random.Random(number("hostile chain", seed))
    num_workers = rng.choice([2, 3]) if kind in ("worker", "server") else 0
    scenario = make_chain_scenario(seed, num_workers)
    spec = change_spec(
        scenario.spec, vocab_size=VOCAB, uplink_budget_bits=0, on_peer_loss=rng.choice(["wait", "continue"]),
        max_peer_share=_pick_limit(seed),
    )  # fmt: skip
    scenario = replace(scenario, spec=spec, faults=(), cancel_s=None, is_rounding=False, restarts=0.0)
    ends: dict[str, tuple[str, str]] = {
        "speculative-cloud": (Party.CLOUD, Party.DEVICE),
        "speculative-device": (Party.DEVICE, Party.CLOUD),
        "worker": ("worker-1", spec.roles.topology.authority),
        "server": (spec.roles.topology.authority, rng.choice(["worker-1", "worker-2"])),
    }
    return scenario, *ends[kind]

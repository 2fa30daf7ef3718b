"""Plays stories written as text: what happens at the coordinators of a query, and below it all that they then send and
log; or at one decoder, if the query names a `decoder`.

    == Title of a story
    # A remark.
    query mode=speculative max_new_tokens=9
    device opens
        device -> decoder, aggregator: begin
        device -> cloud: open

`query` has the settings that differ from `make_spec`; `parties` are those that are played, others are mute. What one of
them sends arrives at the next at once, until all are silent; only then the next line happens, 0.1 s later.

`REWRITE=1 pytest -k rewrite` writes down what is sent now. Read the difference before you commit it.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from tandem import events, messages
from tandem.aggregation.rules import Step
from tandem.errors import Code, Fault
from tandem.messages import LinkBody, Tail, Verdict, Vote
from tandem.modes import SessionSpec
from tandem.protocol.decoding import DecodingSession, DraftingSession, Forward, Job
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.protocol.session import StopCheck
from tandem.protocol.table import CoordinatorTable
from tandem.scheduler import load_length_policy
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol import talk

INDENT = "    "
TICK_S = 0.1
MAX_ARRIVALS = 100
"""Of one line, after which two parties are taken to talk for ever."""
QUIET = re.compile("probe|probe reply|observations")
"""Left out where a query is not `loud`; and of what timers send, heartbeats and reminders to the own decoder."""
TIMED = re.compile(".*(: heartbeat|-> decoder: (begin|resync .*))")
OPTIONS: dict[str, Any] = {"room": 1 << 30, "parties": (), "loud": False}
KNOWN = messages.Logprobs(logprob=-1.0, top_ids=(), top_logprobs=())
Words = dict[str, Any]


def stories(text: str) -> dict[str, str]:
    """The stories of a file by their titles."""
    parts = f"\n{text}".split("\n== ")[1:]
    return {part.splitlines()[0]: part.rstrip() for part in parts}


def play(story: str) -> str:
    """The same story with what is sent, and logged, now."""
    title, *lines = story.splitlines()
    told, player = list[str](), DecoderPlayer() if " decoder=" in story else Player()
    with logged("tandem") as log:
        for line in (line for line in lines if not line.startswith(INDENT)):
            acted = player.act(line) if line and not line.startswith("#") else []
            told += [
                line,
                *(INDENT + sent.rstrip() for sent in acted),
                *(f"{INDENT}log: {text}" for text in log),
            ]
            log.clear()
    return "\n".join([title, *told]).rstrip()


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """What is logged meanwhile."""
    handler, logger, texts = logging.Handler(), logging.getLogger(name), list[str]()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def complete(spec: SessionSpec) -> StopCheck:
    return lambda tokens: "length" if len(tokens) >= spec.sampling.max_new_tokens else None


class Player:
    """The coordinators of one query, and a clock."""

    spec: SessionSpec

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cut: set[str] = set()  # parties whose frames are all lost
        self.obstacle: str | None = None
        self.is_loud = False
        self.tables: dict[str, CoordinatorTable] = {}

    def act(self, line: str) -> list[str]:
        """One line; what is sent because of it."""
        self.now_s = round(self.now_s + TICK_S, 6)
        first, *rest = shlex.split(line)
        values = read(rest)
        match first:
            case "quietly":
                self.act(" ".join(rest))
            case "query":
                self.ask(values)
            case "cut":
                self.cut = set(values["words"])
            case "obstacle":
                self.obstacle = " ".join(values["words"]) or None
            case "wait":
                return self.wait(float(rest[0]))
            case party if rest[0] == "stands":
                return [self.standing(self.tables[party])]
            case party:
                return self.deliver(party, self.happen(self.tables[party], *values["words"], values=values))
        return []

    def ask(self, values: Words) -> None:
        """Begin with a query. room: how many may be open at a party. loud: show what is else left out."""
        room, parties, self.is_loud = (values.pop(key, other) for key, other in OPTIONS.items())
        self.spec = make_spec(
            **{key: value for key, value in values.items() if key not in ("words", "tokens")}
        )
        self.tables = {
            party: CoordinatorTable(party, complete, lambda: self.obstacle, max_open=room)
            for party in listed(parties) or self.spec.roles.topology.parties
        }

    def wait(self, seconds: float) -> list[str]:
        """The timers of all parties; what they send with the times, in seconds from now."""
        times: dict[str, list[float]] = {}
        for number in range(1, round(seconds / TICK_S) + 1):
            self.now_s = round(self.now_s + TICK_S, 6)
            for party, table in self.tables.items():
                for line in self.deliver(party, table.tick(self.now_s)):
                    times.setdefault(line, []).append(round(number * TICK_S, 6))
        is_shown = {line: self.is_loud or not TIMED.fullmatch(line) for line in times}
        return [f"{spelled(at)} s: {line}" for line, at in times.items() if is_shown[line]]

    # ---- what happens at a party -------------------------------------------------------------------------------

    def happen(self, table: CoordinatorTable, verb: str, *words: str, values: Words) -> list[Send]:
        session, now_s = values.get("session", 1), self.now_s
        fault = Fault(code=Code(values.get("code", Code.FAILED)), option=values.get("option"))
        match verb:
            case "opens":
                return table.open(replace(self.spec, session=session), now_s)
            case "hears":  # a frame that somebody else wrote
                return table.receive(self.frame(*words, values=values), now_s, words[0])
            case "votes":
                vote = self.vote(table.party, values)
                return table.receive(messages.Local(session=session, body=vote), now_s)
            case "decides":
                return table.receive(self.result(table, values), now_s)
            case "reads":
                party = table.sessions[1].spec.roles.topology.index(table.party)
                found = messages.Sources(party=party, ids=words, retrieve_us=3, prefill_us=2, notes=())
                ready = messages.DecoderReady(session=1, sources=found, scores=(0.5,) * len(words))
                return table.receive(ready, now_s)
            case "fails":
                failed = messages.DecoderFailed(session=session, reason=words[0], fault=fault)
                return table.receive(failed, now_s)
            case "stops":
                return table.fail_all(words[0], now_s)
            case "cancels":
                return table.cancel(session, now_s)
            case "restarts":
                return table.restart(words[0])  # type: ignore[arg-type]
            case "forgets":  # is started again, and told what is asked by a peer that has heard it before
                table.sessions.clear()
                opening = replace(self.frame(words[0], "open", values=values), echo=1)
                return table.receive(opening, now_s, words[0])
            case "reconnects":
                return table.resend_all(now_s)
            case "takes":
                table.max_open = values["tokens"][0]
                return []
        raise ValueError(f"{table.party} {verb}")

    def frame(self, source: str, kind: str, *words: str, values: Words) -> messages.LinkFrame:
        """A frame of `source`. after: the tokens that it has committed."""
        before = listed(values.get("after"))
        body = self.body(source, kind, words, values, before)
        numbers = {name: values.get(name, 0) for name in ("view", "number")}
        made = talk.frame(body, before, session=values.get("session", 1), **numbers)
        return replace(made, received=tuple(listed(values.get("received"))))

    def body(
        self, source: str, kind: str, words: Sequence[str], values: Words, before: Sequence[int]
    ) -> LinkBody:
        names, tokens = self.spec.roles.topology.parties, tuple(values["tokens"])
        index = {name: place for place, name in enumerate(names)}
        decider, of = index.get(values.get("next", source), 0), index.get(values.get("of", source), 0)
        match kind:
            case "vote":
                return self.vote(source, values)
            case "verdict":
                tail = Tail(
                    logprobs=(KNOWN,) * values.get("logprobs", 0),
                    lost=tuple(index[name] for name in listed(values.get("lost"))),
                    last_voters=tuple(index[name] for name in listed(values.get("last"))),
                )
                full = ((1 << len(tokens)) - 1,) * len(self.spec.roles.drafters)
                return Verdict(
                    step=values.get("step", len(before)), tokens=tokens, next_decider=decider, acceptance=(),
                    accepted=tuple(listed(values.get("accepted"))) or full, tail=(tail,) * (tail != Tail()),
                )  # fmt: skip
            case "resync":
                return messages.Resync(decider=decider, tokens=tokens)
            case "request":
                digest = Prefix(self.spec.session, before).digest
                return messages.ListRequest(step=len(before), digest=digest, depth=values["depth"])
            case "sources":
                return messages.Sources(party=of, ids=tuple(words), retrieve_us=3, prefill_us=2, notes=())
            case "open":
                spec = replace(self.spec, session=values.get("of", values.get("session", 1)))
                return messages.Open(spec=values.get("spec") or spec.to_json())
            case "cancel":
                fault = Fault(code=Code(values.get("code", Code.FAILED)), option=values.get("option"))
                return messages.Cancel(reason=words[0], fault=fault)
            case "done":
                return messages.Done(is_reply="reply" in words)
            case "probe":
                return messages.Probe(is_reply="reply" in words, padding=b"")
            case "rejoin":
                return messages.Rejoin(incarnation=values["as"])
            case "heartbeat":
                return messages.Heartbeat()
        raise ValueError(kind)

    def vote(self, party: str, values: Words) -> Vote:
        """What a party says after some tokens: one distribution for each token, or one more if it does not draft."""
        roles, tokens = self.spec.roles, values["tokens"]
        role = roles.role(party)
        count = len(tokens) + (not role.drafts) if role.votes or self.spec.rules.needs_drafts else 0
        weights = (0.0,) * count if role.votes and roles.weighs_by_documents else ()
        payloads = (str(values.get("payload", party[0])).encode(),) * count
        before = Prefix(self.spec.session, listed(values.get("after")))
        return talk.vote(before, tokens, payloads=payloads, log_weights=weights)

    def result(self, table: CoordinatorTable, values: Words) -> messages.VerifyResult:
        """What the own aggregator makes of the ballot that it was sent. of: other voters than those."""
        session, roles, tokens = table.sessions[1], self.spec.roles, tuple(values["tokens"])
        view, digest, voters = session.ballots.pending or (0, session.prefix.digest, (0, 1))
        places = [
            [roles.topology.index(name) for name in listed(values.get(key))] for key in ("of", "unreadable")
        ]
        num_drafters = len(roles.drafters)
        return messages.VerifyResult(
            session=1, view=view, digest=digest, step=len(session.prefix), voters=tuple(places[0]) or voters,
            tokens=tokens, accepted=tuple(listed(values.get("accepted"))) or (len(tokens),) * num_drafters,
            acceptance=(1.0,) * num_drafters, unreadable=tuple(places[1]), problem=values.get("problem", ""),
            next_decider=roles.topology.index(values.get("next", table.party)),
            tail=(Tail(logprobs=(KNOWN,) * values.get("logprobs", 0)),),
        )  # fmt: skip

    # ---- what is sent ------------------------------------------------------------------------------------------

    def deliver(self, party: str, sends: Iterable[Send]) -> list[str]:
        """Frames arrive until nobody has any more to say."""
        shown: list[str] = []
        waiting = deque([(party, list(sends))])
        for _ in range(MAX_ARRIVALS):
            if not waiting:
                return shown
            sender, sent = waiting.popleft()
            shown += self.lines(sender, sent)
            for send in sent:
                if send.to == "peer" and send.peer in self.tables and not self.cut & {sender, send.peer}:
                    waiting.append(
                        (send.peer, self.tables[send.peer].receive(send.message, self.now_s, sender))
                    )
        raise AssertionError("There is no end of it.")

    def lines(self, party: str, sends: Sequence[Send]) -> Iterator[str]:
        """A line for each thing that is said, with all who hear it: peers, and actors of the party."""
        for text, group in groupby(sends, key=lambda each: self.spell(each.message)):
            heard = ", ".join(send.peer or send.to for send in group)
            if self.is_loud or not QUIET.fullmatch(text):
                yield f"{party} -> {heard}: {text}"

    def spell(self, message: Any) -> str:
        """A message in words; of another query than the first with its number."""
        body = getattr(message, "body", getattr(message, "event", message))
        text = spell(body, self.spec.roles.topology.parties) + ", the last" * getattr(
            message, "is_last", False
        )
        return text if message.session == 1 else f"{text} (query {message.session})"

    def standing(self, table: CoordinatorTable) -> str:
        opened = [
            f"query {key} has [{spelled(session.prefix.tokens)}] in view {session.log.view}"
            + "".join(f", without {name}" for name in sorted(session.lost))
            + f", degraded from {session.statistics.degraded_from} on"
            * (session.statistics.degraded_from is not None)
            + f", {session.statistics.num_late_votes} late" * (session.statistics.num_late_votes > 0)
            for key, session in table.sessions.items()
        ]
        waiting = [f"{table.num_waiting} wait"] * (table.num_waiting > 0)
        refused = [f"{count} refused" for count in (table.num_refused, table.num_refused_frames) if count]
        return "; ".join([*(opened or ["nothing is open"]), *waiting, *refused])


class Told:
    """A policy of lengths that is told what to say, and keeps what it hears."""

    length = 0
    heard: ClassVar[list[str]] = []

    def __init__(self, max_length: int) -> None:
        """max_length: of every policy."""

    def choose(self) -> int:
        """What it was told last."""
        return self.length

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        """How many tokens of a proposal were accepted."""
        self.heard.append(f"the policy hears {num_accepted} of {length} after {1e6 * draft_s:g} us")


POLICY = f"{__name__}:Told"
load_length_policy(POLICY, {}, "This process")


class DecoderPlayer:
    """The decoder of one party: what it says, and where it computes next if that has changed."""

    made: DecodingSession
    job: Job | None = None  # that was started and is not finished
    stands = ""

    def act(self, line: str) -> list[str]:
        verb, *words = shlex.split(line)
        values = read(words)
        sends = list(self.happen(verb, values))
        said = "; ".join(spell(vote, ()) for vote in talk.votes(sends))
        following = self.made.next_job()
        stands = (
            f"computes after [{spelled(following.tokens)}]" if isinstance(following, Forward) else "waits"
        )
        if self.job is not None and verb != "starts":
            assert isinstance(self.job, Forward)
            stands += "; the pass goes on" if self.made.is_current(self.job) else "; the pass is stale"
        shown = [*Told.heard, *[said] * bool(said), *[stands] * (stands != self.stands)]
        Told.heard.clear()
        self.stands = stands
        return shown

    def happen(self, verb: str, values: Words) -> Iterator[Send]:
        tokens, view = values.pop("tokens"), values.get("view", 0)
        match verb:
            case "query":
                self.begin(values)
            case "drafts":  # one token after the other
                for token in tokens:
                    self.job = self.made.next_job()
                    yield from self.finish(token, values)
            case "starts":
                self.job = self.made.next_job()
            case "finishes":
                yield from self.finish(tokens[0], values)
            case "decided":
                told = talk.decided(values["step"], *tokens, view=view, is_last="last" in values["words"])
                yield from self.made.receive(told)
            case "adopts":
                yield from self.made.receive(
                    talk.adopted(*tokens, view=view, is_last="last" in values["words"])
                )
            case "window":
                yield from self.made.receive(messages.DraftWindow(session=1, size=tokens[0]))
            case "length":
                Told.length = tokens[0]
            case "alone":
                yield from self.made.receive(messages.Alone(session=1, is_alone=True))
            case _:
                raise ValueError(verb)

    def begin(self, values: Words) -> None:
        """A query, with no documents, prefilled."""
        values = {key: value for key, value in values.items() if key != "words"}
        party = values.pop("decoder")
        if "length" in values:
            Told.length, values["length_policy"] = values.pop("length"), POLICY
        self.made = DraftingSession(
            make_spec(**{f"{party}_documents": 0, "eos_token_ids": (3,), **values}), party
        )
        self.made.begin()
        self.made.finish_prefill(0, ())

    def finish(self, token: int, values: Words) -> list[Send]:
        job, self.job = self.job, None
        assert isinstance(job, Forward)
        payload = str(values.get("payload", "law")).encode()
        return self.made.finish(job, [Step(job.step, token, payload, 5)])


def spell(body: Any, names: Sequence[str]) -> str:
    """What a message says, in words. names: of the parties."""
    match body:
        case Vote():
            given = ["by", *(payload.decode() for payload in body.payloads)] if body.payloads else []
            return f"vote {body.step}: {spelled((*body.tokens, *given))}"
        case Verdict():
            full = (1 << len(body.tokens)) - 1
            shown = f"verdict {body.step}: {spelled(body.tokens)}, next {names[body.next_decider]}"
            shown += f", accepted {spelled(body.accepted)}" * any(mask != full for mask in body.accepted)
            for tail in body.tail:
                shown += f", {len(tail.logprobs)} named" * bool(tail.logprobs)
                shown += f", lost {spelled(names[place] for place in tail.lost)}" * bool(tail.lost)
                shown += f", last {spelled(names[place] for place in tail.last_voters)}" * bool(
                    tail.last_voters
                )
            return shown
        case messages.Resync():
            return f"resync [{spelled(body.tokens)}], next {names[body.decider]}"
        case messages.Done() | messages.Probe():
            return type(body).__name__.lower() + " reply" * body.is_reply
        case messages.Cancel():
            return f"cancel {json.dumps(body.reason)} {body.fault.code}"
        case messages.Rejoin():
            return f"rejoin {body.incarnation}"
        case messages.ListRequest():
            return f"request {body.step}: {body.depth}"
        case messages.Sources():
            return f"sources of {names[body.party]}: {spelled(body.ids)}"
        case messages.Ballot():
            return f"ballot {body.step} of {spelled(names[voter] for voter in body.voters)}: {spelled(body.tokens)}"
        case messages.Alone():
            return "alone" if body.is_alone else "not alone"
        case events.TokenEvent():
            shown = f"token {body.step}: {body.token} of {body.aggregator}" + ", alone" * body.is_alone
            shown += f", last {body.last_voter}" if body.last_voter else ""
            return shown + ("" if body.logprob is None else f", logprob {body.logprob.logprob}")
        case events.PeerEvent():
            reason = f": {body.reason}" if body.reason else ""
            return f"{'lost' if body.is_alone else 'back'} {body.party} from {body.step} on{reason}"
        case events.DoneEvent():
            code = f" {body.fault.code} {body.fault.party or ''}".rstrip() if body.fault else ""
            return body.reason + (f" {json.dumps(body.error)}{code}" if body.error else "")
        case events.SourcesEvent():
            return f"sources of {body.party}: {spelled(f'{each.id}={each.score}' for each in body.sources)}"
        case events.ProvisionalEvent():
            return f"draft {body.step}: {body.token}"
        case events.RetractEvent():
            return f"retract {body.step}"
        case events.PlacementEvent():
            return f"{body.aggregator} decides from {body.step} on"
        case events.WaitEvent():
            return f"{body.num_ahead} wait before it"
    return type(body).__name__.lower()


def read(words: Sequence[str]) -> Words:
    """`name=value` by name; of the rest the numbers as `tokens`, all else as `words`."""
    pairs = [word.partition("=") for word in words]
    rest = [name for name, is_named, _ in pairs if not is_named]
    return {
        **{name: value_of(value) for name, is_named, value in pairs if is_named},
        "tokens": [int(word) for word in rest if word.isdigit()],
        "words": [word for word in rest if not word.isdigit()],
    }


def value_of(text: str) -> Any:
    if "," in text and not text.startswith("{"):
        return tuple(value_of(part) for part in text.split(",") if part)
    try:
        return {"None": None, "True": True}.get(text, text) if text[-1:].isalpha() else json.loads(text)
    except ValueError:
        return text


def listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, tuple) else [value]


def spelled(values: Iterable[Any]) -> str:
    return " ".join(map(str, values))

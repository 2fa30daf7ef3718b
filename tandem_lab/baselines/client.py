"""Starts a cluster with the laboratory's actors, and asks them for what the baselines need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tandem.client.request import build_spec
from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import QueryError, TandemError
from tandem.events import Answer, DoneEvent, collect
from tandem.modes import SessionSpec
from tandem.plugins.ray.actors import RayActors, find_party
from tandem.protocol.routes import ActorKind
from tandem.sites.port import Host
from tandem.topology import Party
from tandem_lab.baselines.actors import BASELINE_ACTORS
from tandem_lab.baselines.experiments import Experiments, Treatment
from tandem_lab.baselines.sequences import SequenceResult

RPC_GRACE_S = 1.0
"""Grace period beyond the time limit, so that an actor's own error arrives first."""
Call = Callable[..., Awaitable[Any]]
"""Calls an actor of one party: its role, a method, and arguments."""
TREATED: tuple[ActorKind, ...] = ("draft_queue", "decoder", "retriever")


def launch(
    config: Config,
    experiments: Experiments | None = None,
    *,
    hosts: Mapping[str, Host] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Tandem:
    """`Tandem.launch` with the laboratory's actors, under the conditions of `experiments`. Raises TandemError."""
    config.require_cluster("An experiment with the laboratory's actors")
    tandem = Tandem.launch(
        config, runtime="ray", hosts=hosts, actor_classes=BASELINE_ACTORS, progress=progress
    )
    try:
        Baselines(tandem).apply(experiments or Experiments())
    except BaseException:
        tandem.close()
        raise
    return tandem


class Baselines:
    """Calls to the laboratory's actors of one cluster, which `launch` started. Every method raises TandemError."""

    def __init__(self, tandem: Tandem, parties: Mapping[str, Call] | None = None) -> None:
        """parties: how the actors of each are called; None looks them up on Ray."""
        self._tandem = tandem
        self._limit_s = tandem.config.cluster.query_timeout_s
        self._parties = parties or {
            party: call_of(find_party(party, tandem.config)) for party in tandem.config.parties
        }
        self._treatments = {party: Treatment() for party in self._parties}

    def apply(self, experiments: Experiments) -> None:
        """Set the conditions of all queries from now on."""
        for party in self._parties:
            seconds = experiments.min_decode_time_s.get(party, 0.0)
            self._call(party, "decoder", "pad_decode_time", seconds)
            delays = experiments.extra_delay_s, experiments.extra_jitter_s
            self._call(party, "draft_queue", "delay_frames", *delays)

    def treat(self, treatments: Mapping[str, Treatment]) -> None:
        """Treat the queries that start from now on in this way; a side that is not named, as the product does."""
        for party in self._parties:
            treatment = treatments.get(party, Treatment())
            if treatment.extra_documents and not self._tandem.config.party(party).num_documents:
                raise TandemError(f"Extra documents need {party}.num_documents of at least 1 (got 0).")
            if treatment != self._treatments[party]:
                for kind in TREATED:
                    self._call(party, kind, "treat", treatment)
                self._treatments[party] = treatment

    def fetch_sequence(
        self, answer: Answer | DoneEvent, party: Party, *, dense: bool = False
    ) -> SequenceResult:
        """Tokens and distributions of an answer that `party` gave alone while it kept distributions; once.

        answer: or the DoneEvent of its stream. dense: distributions before the codec, [vocab] little-endian float16.
        """
        num_tokens = answer.statistics.num_tokens
        sequence: SequenceResult = self._call(
            party, "decoder", "fetch_sequence", answer.session, num_tokens, dense
        )
        return sequence

    def write_answer(
        self, question: str, party: Party, *, dense: bool = False, **options: Any
    ) -> SequenceResult:
        """A whole answer that `party` gives alone while it keeps distributions, in one call over the link (DRDG/SW).

        options: as in `Tandem.query`.
        """
        spec = build_spec(self._tandem.config, self._tandem.described, question, only=party, **options)
        return asyncio.run(self._write(spec, party, dense))

    def fetch_texts(self, question: str, num_documents: int) -> list[str]:
        """Texts of the cloud's best documents, which are public."""
        texts: list[str] = self._call(Party.CLOUD, "retriever", "texts", question, num_documents)
        return texts

    async def _write(self, spec: SessionSpec, party: Party, dense: bool) -> SequenceResult:
        """The decoder is called at once, so that its result takes no round trip of its own; the queue knows how the
        answer ended, and where: the decoder drafts past a stop text."""
        call = self._parties[party]
        opening = asyncio.ensure_future(call("draft_queue", "open", spec.as_for(party).to_json()))
        sequence = asyncio.ensure_future(
            self._result(call("decoder", "fetch_sequence", spec.session, None, dense))
        )
        try:
            last = await self._result(call("draft_queue", "events", spec.session, -1, self._limit_s, True))
            if not last:
                raise QueryError(_late(self._limit_s))
            num_tokens = collect(last, spec.seed).statistics.num_tokens
            result: SequenceResult = await sequence
            return result.up_to(num_tokens)
        except BaseException:
            with contextlib.suppress(TandemError):
                await self._result(call("draft_queue", "cancel", spec.session))
            raise
        finally:
            opening.cancel()
            sequence.cancel()
            await asyncio.gather(opening, sequence, return_exceptions=True)

    def _call(self, party: str, kind: ActorKind, method: str, *values: Any) -> Any:
        """What an actor's method returns."""

        async def call() -> Any:
            return await self._result(self._parties[party](kind, method, *values))

        return asyncio.run(call())

    async def _result(self, call: Any) -> Any:
        """What a call returns. Raises the TandemError that the actor raised, or QueryError after the time limit."""
        try:
            return await asyncio.wait_for(call, self._limit_s + RPC_GRACE_S)
        except TimeoutError:
            raise QueryError(_late(self._limit_s)) from None


def call_of(actors: RayActors) -> Call:
    """How these actors are called."""
    return lambda role, method, *arguments: actors[role].call(method, *arguments)


def _late(limit_s: float) -> str:
    return f"An actor did not answer within {limit_s:g} s; raise cluster.query_timeout_s, or see `tandem status`."

"""The product's actors with what only experiments need. `client.Baselines` calls their additional methods."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import AggregatorActor, RetrieverActor, SchedulerActor
from tandem.aggregation.rules import Step
from tandem.codecs import codec_of
from tandem.errors import TandemError
from tandem.messages import Begin, End, RetrieveRequest
from tandem.modes import SessionSpec
from tandem.protocol.decoding import DecodingSession, Forward, Prefill
from tandem.protocol.routes import Send
from tandem.sites.port import ActorClasses
from tandem.topology import Party
from tandem_lab.baselines.documents import concatenate, score_texts
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.baselines.random_placement import RandomAggregatingTable
from tandem_lab.baselines.sequences import SequenceResult, SequenceStore

if TYPE_CHECKING:
    from tandem.engine.prompt import Prompt
    from tandem.retrieval.retriever import Hit


class Treated:
    """An actor of which an experiment asks more."""

    _treatment = Treatment()

    async def treat(self, treatment: Treatment) -> None:
        """Treat the queries that begin from now on in this way."""
        self._treatment = treatment


class BaselineDecoder(Treated, DecoderActor):
    """Keeps distributions, and pads decode times."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self._min_decode_time_s = 0.0
        self._sequences = SequenceStore()

    # ---- calls of the laboratory -----------------------------------------------------------------------------

    async def pad_decode_time(self, seconds: float) -> None:
        """From now on, every draft takes at least this long, waiting without CPU: it stands for slower hardware."""
        self._min_decode_time_s = seconds

    async def fetch_sequence(
        self, session: int, num_tokens: int | None = None, dense: bool = False
    ) -> SequenceResult:
        """Tokens and distributions of the first `num_tokens` steps of a session that this side answers alone, once.

        dense: [vocab] little-endian float16 before the codec, instead of encoded. num_tokens: None waits for the
        session's end and takes all. Raises TandemError unless the session was kept and has so many steps.
        """
        if num_tokens is None:
            await self._sequences.wait_for_end(session, self.config.cluster.query_timeout_s)
        return self._sequences.take(session, num_tokens, dense=dense)

    # ---- what differs from the product's decoder -------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """As the product's, and keeps track of the sequences."""
        sends = super().handle(message, source)
        if isinstance(message, Begin) and self._treatment.keeps_distributions:
            if message.session in self.table.sessions:
                self._sequences.begin(message.session)
        elif isinstance(message, End):
            self._sequences.end(message.session)
        return sends

    def fail(self, session: int, error: Exception) -> None:
        """As the product's; nothing is kept of the session."""
        self._sequences.end(session, failed=True)
        super().fail(session, error)

    def open_prompt(self, job: Prefill) -> Prompt:
        """Caches of joined documents are hardly used again, and extra documents are the caller's: neither is stored."""
        return super().open_prompt(replace(job, num_stored=0) if self._treatment.is_static else job)

    async def draft(
        self, sessions: Sequence[DecodingSession], jobs: Sequence[Forward]
    ) -> list[list[Step] | Exception | None]:
        """As the product's, kept and padded."""
        started_s = time.perf_counter()
        drafts = [self._pad(draft) for draft in await super().draft(sessions, jobs)]
        await self._wait_until(started_s + self._min_decode_time_s, sessions, jobs)
        for job, computed in zip(jobs, drafts, strict=True):
            if isinstance(computed, list) and self._sequences.is_keeping(job.session):
                draft, dense = computed[-1], self._drafters[job.session].dense
                assert dense is not None
                self._sequences.add(job.session, draft, dense.astype("<f2").tobytes())
        return drafts

    def _pad(self, drafts: list[Step] | Exception | None) -> list[Step] | Exception | None:
        if not isinstance(drafts, list):
            return drafts
        least_us = int(1e6 * self._min_decode_time_s)
        self.decode_s += max(0, least_us - drafts[-1].decode_us) / 1e6
        return [replace(draft, decode_us=max(draft.decode_us, least_us)) for draft in drafts]

    async def _wait_until(
        self, until_s: float, sessions: Sequence[DecodingSession], jobs: Sequence[Forward]
    ) -> None:
        """As a forward pass does, the wait ends when no draft is wanted any more."""
        pairs = list(zip(sessions, jobs, strict=True))
        while any(session.is_current(job) for session, job in pairs) and (
            (left_s := until_s - time.perf_counter()) > 0
        ):
            self.wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), left_s)


class BaselineRetriever(Treated, RetrieverActor):
    """Hands the cloud's texts out, adds extra documents, joins documents in one row."""

    async def texts(self, query: str, k: int) -> list[str]:
        """The texts of this side's k best documents, best first. TandemError on the device, whose documents stay."""
        if self.party is Party.DEVICE:
            raise TandemError(
                f"Only the cloud hands out its documents, which are public; this is {self.name}, ask cloud/retriever."
            )
        hits = await self.in_thread(lambda: self.retriever.search(query, k))
        return [hit.document.page_content for hit in hits]

    def search(self, request: RetrieveRequest) -> list[Hit]:
        """The documents found, the extra ones after them; joined in one if so treated."""
        extra = score_texts(self._treatment.extra_documents, request.query, self.retriever)
        hits = [*super().search(request), *extra]
        return concatenate(hits, self.config.score_scale) if self._treatment.concat_documents else hits


class BaselineDraftQueue(Treated, DraftQueueActor):
    """Changes sessions as they open, and delays frames to the peer."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self._delay_s = self._jitter_s = 0.0

    async def delay_frames(self, delay_s: float, jitter_s: float) -> None:
        """From now on, send every frame to the peer this much later, plus up to `jitter_s` at random."""
        self._delay_s, self._jitter_s = delay_s, jitter_s

    async def open(self, spec_json: str) -> None:
        """As the product's, with the treatment's changes of the spec."""
        spec = SessionSpec.from_json(spec_json)
        await super().open(self._treatment.apply_to(spec).to_json())

    def send_to_peer(self, send: Send, frame: bytes) -> None:
        """Across the link, after the delay."""
        if self._delay_s or self._jitter_s:
            delay_s = self._delay_s + random.uniform(0.0, self._jitter_s)
            asyncio.get_running_loop().call_later(delay_s, super().send_to_peer, send, frame)
        else:
            super().send_to_peer(send, frame)


class BaselineAggregator(AggregatorActor):
    """Adds random placement."""

    @cached_property
    def table(self) -> RandomAggregatingTable:
        """Its sessions."""
        return RandomAggregatingTable(self.party, codec_of(self.config.codec, self.place))


class BaselineScheduler(SchedulerActor):
    """Knows random placement, which this module has loaded."""


BASELINE_ACTORS: ActorClasses = {
    actor.role: actor
    for actor in (
        BaselineDecoder,
        BaselineRetriever,
        BaselineDraftQueue,
        BaselineAggregator,
        BaselineScheduler,
    )
}
"""For `Tandem.launch(actor_classes=...)`."""

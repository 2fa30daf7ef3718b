"""The decoder: one side's language model, drafting ahead of the committed prefix.

    DraftQueue --Begin/Commit/Adopt/End--> Decoder --Drafted--> DraftQueue
    Decoder --Search/Score--> Retriever --Found/Relevance--> Decoder

The model runs in one thread of its own, one job at a time; what to compute is the host's decision. A forward pass
whose prefix was rolled back is abandoned at the next layer boundary.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tandem.actors.base import Runtime, SiteActor
from tandem.aggregation.document_weights import log_weight
from tandem.codecs import codec_of
from tandem.errors import TandemError
from tandem.protocol.drafting import DraftingSession, Forward, Job, Prefill
from tandem.protocol.messages import PROTOCOL_VERSION, Begin, DecoderFailed, End
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session_tables import DraftingTable
from tandem.topology import Party

_log = logging.getLogger("tandem")

if TYPE_CHECKING:
    from tandem.engine.engine import Engine, OpenResult


POLL_S = 0.002
"""Between looks whether a session has ended, where somebody waits for its laws."""
MAX_SEQUENCES = 4
"""Sessions whose laws are kept, at most; each holds two bytes a step and vocabulary entry."""


class Step(NamedTuple):
    """What one step of a lone session came from."""

    token: int
    payload: bytes  # Codec.encode(q)
    dense: bytes  # q before the codec, [vocab] little-endian float16
    log_weight: float  # of the side's documents


class DecoderActor(SiteActor):
    """Runs the jobs that its host plans."""

    role: ClassVar[ActorKind] = "decoder"
    dials: ClassVar[tuple[ActorKind, ...]] = ("retriever",)

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.codec = codec_of(runtime.config.codec)
        self.host = DraftingTable(party, lambda tokens: self._engine().text(tokens))
        self.num_forwards = 0
        self.num_abandoned = 0
        self.decode_s = 0.0
        self._loaded: Engine | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._wake = asyncio.Event()
        self._ended: list[int] = []  # sessions to free in the engine
        # By session, step: from the beginning of a session that asked for them until they are fetched.
        self._sequences: OrderedDict[int, dict[int, Step]] = OrderedDict()
        self._kv_notes: list[str] = []  # sentences on the store of caches, for the next answer

    # ---- control plane ---------------------------------------------------------------------------------------

    async def prepare(self) -> dict[str, Any]:
        """Load the model; what is returned is compared with the other side's before the first query."""
        from tandem.paths import cache_folder
        from tandem.profiler.cache import cached_line

        loop = asyncio.get_running_loop()
        engine: Engine = await loop.run_in_executor(self._thread, self._load)
        self._loaded = engine
        party = self.config.party(self.party)
        line = await loop.run_in_executor(
            self._thread, lambda: cached_line(party, cache_folder(), _log.warning)
        )
        self.spawn(self._work(), "work")
        self.description = {
            "model": party.model,
            "vocabulary_fingerprint": engine.vocabulary_fingerprint,
            "vocab_size": engine.vocab_size,
            "context_length": engine.context_length,
            "eos_token_ids": list(engine.eos_token_ids),
            "codec": self.codec.fingerprint(),
            "protocol_version": PROTOCOL_VERSION,
            "decode_line": line,  # k_a, k_b, k_c, start; [] without a profile of these settings here
        }
        return self.description

    async def tokenizer_json(self) -> str:
        """For the draft queue, which turns tokens into text without torch."""
        return self._engine().tokenizer_json

    async def sequence(
        self, session: int, num_tokens: int | None = None, dense: bool = False
    ) -> dict[str, Any]:
        """Tokens and laws of the first `num_tokens` steps of a lone session, once: they are dropped here.

        {"tokens": [int], "laws": [bytes], "log_weight": float}: the encoded laws as drafted or, with `dense`, before
        the codec as [vocab] little-endian float16; the documents' weight at the first step. num_tokens: None waits for
        the session's end, and takes all. TandemError unless the session asked for them with `keeps_distributions`
        and drafted so many.
        """
        if num_tokens is None:
            await self._wait_for_end(session)
            num_tokens = max(1, len(self._sequences.get(session, {})))
        steps = self._sequences.get(session, {})
        if not set(range(num_tokens)) <= set(steps):
            raise TandemError(
                f"Laws are kept for the last {MAX_SEQUENCES} queries asked with keeps_distributions, until they are fetched, "
                f"{num_tokens} steps were asked for and {len(steps)} are there; ask the query again."
            )
        del self._sequences[session]
        found = [steps[step] for step in range(num_tokens)]
        return {
            "tokens": [step.token for step in found],
            "laws": [step.dense if dense else step.payload for step in found],
            "log_weight": found[0].log_weight,
        }

    async def _wait_for_end(self, session: int) -> None:
        """Of a session that may not have begun here yet. TandemError if it takes as long as no query may."""
        limit_s = self.config.cluster.query_timeout_s
        deadline_s = time.monotonic() + limit_s
        has_begun = False
        while True:
            has_begun = has_begun or session in self.host.sessions or session in self._sequences
            if has_begun and session not in self.host.sessions:
                return
            if time.monotonic() > deadline_s:
                raise TandemError(
                    f"A session must end within {limit_s:g} s, this one did not; raise cluster.query_timeout_s."
                )
            await asyncio.sleep(POLL_S)

    async def prefix_caches(self, texts: list[str]) -> bytes:
        """Caches of the cloud's documents for the device's engine, to measure what sending them would cost.

        TandemError on the device: a cache shows its document, and the device's stay there.
        """
        if self.party is Party.DEVICE:
            raise TandemError(
                f"Caches of documents are lent by the cloud alone, this is {self.name}; ask cloud/decoder."
            )
        from tandem.lab.latency.lending import packed

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: packed(self._engine(), texts))

    async def lend_prefixes(self, texts: list[str], data: bytes) -> None:
        """Use the caches that `prefix_caches` of the other side gave for the same texts, from memory.

        TandemError if they are of another model, precision or template.
        """
        from tandem.engine.kv_cache import MemoryStore
        from tandem.lab.latency.lending import unpack

        engine = self._engine()
        if engine.caches.lent is None:
            engine.caches.lent = MemoryStore(self.config.party(self.party).kv_max_bytes)
        lent, loop = engine.caches.lent, asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, lambda: unpack(engine, texts, data, lent))

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """Change the plan and wake the worker."""
        sends = self.host.receive(message)
        if isinstance(message, Begin):
            self._begin_sequence(message.session, self.host.sessions.get(message.session))
        if isinstance(message, End):
            self._ended.append(message.session)
        self._wake.set()
        return sends

    def _begin_sequence(self, key: int, session: DraftingSession | None) -> None:
        """Make room for the laws of a session that asked for them."""
        if session is not None and session.spec.keeps_distributions:
            self._sequences.setdefault(key, {})
        while len(self._sequences) > MAX_SEQUENCES:
            self._sequences.popitem(last=False)

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message that cannot be handled ends its session, not the actor."""
        self._fail(message.session, error)

    def on_lost(self, name: str) -> None:
        """Without its retriever no session of this side can go on."""
        if name == f"{self.party}/retriever":
            reason = f"The retriever of the {self.party} must be running but stopped; start the side again."
            self.dispatch(
                [Send("draft_queue", DecoderFailed(session=key, reason=reason)) for key in self.host.sessions]
            )

    async def _work(self) -> None:
        """The decoder's whole life: compute what the host wants next, tell what came of it."""
        loop = asyncio.get_running_loop()
        while True:
            self._free_ended()
            job = self.host.next_job()
            if job is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            session = self.host.sessions[job.session]
            started_s = time.perf_counter()
            try:
                tell = await loop.run_in_executor(self._thread, self._job(session, job))
                if isinstance(job, Forward):
                    await self._pace(session, job, started_s)
                self.dispatch(tell())
            except Exception as error:
                self._fail(job.session, error)

    async def _pace(self, session: DraftingSession, job: Forward, started_s: float) -> None:
        """Make a draft take as long as the settings' floor says, to stand for slower hardware: a wait without CPU
        that ends, as a forward pass does, when the draft is no longer wanted.
        """
        until_s = started_s + self.config.party(self.party).min_decode_time_s
        while session.is_current(job) and (left_s := until_s - time.perf_counter()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left_s)

    def _fail(self, session: int, error: Exception) -> None:
        """One session cannot go on; the others do."""
        if not isinstance(error, TandemError):
            _log.exception("%s failed", self.name, exc_info=error)
            error = TandemError(
                f"The decoder of the {self.party} failed on this query: {error!r}; see its log."
            )
        self.host.sessions.pop(session, None)
        self._sequences.get(session, {}).clear()
        self._ended.append(session)
        self.dispatch([Send("draft_queue", DecoderFailed(session=session, reason=str(error)))])

    # ---- the model's thread ----------------------------------------------------------------------------------

    def _job(self, session: DraftingSession, job: Job) -> Callable[[], Any]:
        """Blocking work for the model's thread; its result is a function to run on the event loop."""
        if isinstance(job, Prefill):
            return lambda: self._prefill(session, job)
        return lambda: self._forward(session, job)

    def _prefill(self, session: DraftingSession, job: Prefill) -> Callable[[], list[Send]]:
        from tandem.engine.engine import Preempted

        started_s = time.perf_counter()
        engine = self._engine()
        # Joined documents hardly come again, and given ones are the caller's, who may not want them on the disk.
        is_stored = not (session.spec.context_aggregation or session.spec.given_texts)
        opened = engine.open(
            str(job.session), job.query, job.documents, job.max_new_tokens, is_stored=is_stored
        )
        try:
            engine.next_logits(str(job.session), [], is_stale=lambda: job.session not in self.host.sessions)
        except Preempted:
            return list
        prefill_us = _elapsed_us(started_s)
        return lambda: session.finish_prefill(prefill_us, self._notes(opened), opened.documents)

    def _forward(self, session: DraftingSession, job: Forward) -> Callable[[], list[Send]]:
        from tandem.engine.drafter import Drafter
        from tandem.engine.engine import Preempted

        started_s = time.perf_counter()
        spec = session.spec
        drafter = Drafter(self.codec, spec.sampling, spec.draft_rule)
        try:
            logits = self._engine().next_logits(
                str(job.session), job.tokens, is_stale=lambda: not session.is_current(job)
            )
        except Preempted:
            self.num_abandoned += 1
            return list
        token, payload, dense = drafter.draft(
            logits, job.weights or (0.0,), seed=spec.seed, step=job.step, party=self.party
        )
        floor_us = int(1e6 * self.config.party(self.party).min_decode_time_s)
        decode_us = max(_elapsed_us(started_s), floor_us)
        self.num_forwards += 1
        self.decode_s += decode_us / 1e6
        if not spec.keeps_distributions:
            return lambda: session.finish_forward(job, payload, token, decode_us)
        step = Step(token, payload, dense.astype("<f2").tobytes(), log_weight(job.weights))

        def tell() -> list[Send]:
            self._keep(job, step)
            return session.finish_forward(job, payload, token, decode_us)

        return tell

    def _keep(self, job: Forward, step: Step) -> None:
        """Hold the laws of a step for `sequence`. Alone every draft is accepted, so the first of a step is the last.

        What ended or was fetched while this step was computed is not kept anew.
        """
        if job.session in self.host.sessions and job.session in self._sequences:
            self._sequences[job.session].setdefault(job.step, step)

    def _load(self) -> Engine:
        from tandem.loading import open_engine
        from tandem.retrieval.factory import kv_folder

        return open_engine(self.config.party(self.party), kv_folder(self.party, self.config), self._on_kv)

    def _on_kv(self, sentence: str) -> None:
        """The store of caches left something unused: said once in the log and once beside an answer."""
        _log.warning("%s: %s", self.name, sentence)
        self._kv_notes.append(sentence)

    def _engine(self) -> Engine:
        if self._loaded is None:
            raise TandemError(f"{self.name} must load its model before it is used; await prepare() first.")
        return self._loaded

    def _free_ended(self) -> None:
        while self._ended:
            self._engine().close(str(self._ended.pop()))

    def _notes(self, opened: OpenResult) -> tuple[str, ...]:
        notes, self._kv_notes = self._kv_notes, []
        if opened.truncated:
            notes.append(
                f"{len(opened.truncated)} documents were cut at their end to fit the model's context."
            )
        if opened.dropped:
            notes.append(
                f"{len(opened.dropped)} documents were left out: they do not fit the model's context."
            )
        return tuple(notes)

    def _extra_statistics(self) -> dict[str, float]:
        return {
            "num_forwards": self.num_forwards,
            "num_abandoned": self.num_abandoned,
            "decode_s": self.decode_s,
            **(self._loaded.caches.statistics() if self._loaded else {}),
        }


def _elapsed_us(started_s: float) -> int:
    return int((time.perf_counter() - started_s) * 1e6)

"""The decoder: one side's language model, drafting ahead of the committed prefix.

    DraftQueue --Begin/Commit/Adopt/End--> Decoder --ProposalReady--> DraftQueue
    Decoder --RetrieveRequest/RescoreRequest--> Retriever --RetrieveResult/RescoreResult--> Decoder

The model runs one job at a time in a thread of its own; the session table decides what to compute. A forward pass
whose prefix was rolled back is abandoned at the next layer boundary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from tandem.actors.base import Runtime, SiteActor, remedy_for, sendable
from tandem.codecs import Codec, codec_of
from tandem.errors import TandemError
from tandem.protocol.drafting import DraftingSession, Forward, Job, Prefill
from tandem.protocol.messages import PROTOCOL_VERSION, DecoderFailed, End
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session_tables import DraftingTable
from tandem.scheduler.policies import load_policy
from tandem.topology import Party

_log = logging.getLogger("tandem")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine, OpenResult

T = TypeVar("T")


class Draft(NamedTuple):
    """The result of one forward pass."""

    token: int
    payload: bytes  # Codec.encode(q)
    dense: NDArray[np.float64]  # q before the codec, [vocab]
    decode_us: int


class DecoderActor(SiteActor):
    """Runs the jobs that its session table plans."""

    role: ClassVar[ActorKind] = "decoder"
    dials: ClassVar[tuple[ActorKind, ...]] = ("retriever",)

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table = DraftingTable(party, lambda tokens: self.engine.text(tokens))
        self.num_forwards = 0
        self.num_abandoned = 0
        self.decode_s = 0.0
        self.wake = asyncio.Event()  # a message arrived, so the plan may have changed
        self._loaded: Engine | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._drafters: dict[int, Drafter] = {}  # by session: the state of the codec
        self._ended: list[int] = []  # sessions to free in the engine
        self._kv_notes: list[str] = []  # sentences about the store of caches, for the next answer

    @property
    def engine(self) -> Engine:
        """The loaded model. Raises TandemError before `prepare`."""
        if self._loaded is None:
            raise TandemError(f"{self.name} has not loaded its model yet; await prepare() first.")
        return self._loaded

    @cached_property
    def codec(self) -> Codec:
        """What compresses this party's distributions. Raises ConfigError if it cannot be loaded."""
        return codec_of(self.config.codec, self.place)

    # ---- control plane ---------------------------------------------------------------------------------------

    async def prepare(self) -> dict[str, Any]:
        """Load the model. The description is compared with the other side's before the first query."""
        from tandem.paths import cache_folder
        from tandem.profiler.cache import cached_line

        codec, decoding = self.codec.fingerprint(), self.config.decoding
        policy = load_policy(decoding.placement, self.config.scheduler.parameters, self.place)
        self._loaded = engine = await self.on_model_thread(self._load)
        party = self.config.party(self.party)
        line = await self.on_model_thread(lambda: cached_line(party, cache_folder(), _log.warning))
        self.spawn(self.work(), "work")
        self.description = {
            "model": party.model,
            "tokenizer": engine.tokenizer_name,
            "template": engine.template.describe(),
            "vocabulary_fingerprint": engine.vocabulary_fingerprint,
            "vocab_size": engine.vocab_size,
            "context_length": engine.context_length,
            "eos_token_ids": list(engine.eos_token_ids),
            "codec": codec,
            "policy": policy,  # empty: none of one's own
            "protocol_version": PROTOCOL_VERSION,
            "decode_line": line,  # k_a, k_b, k_c, start; [] without a profile of these settings here
        }
        return self.description

    async def tokenizer_json(self) -> str:
        """For the draft queue, which turns tokens into text without torch."""
        return self.engine.tokenizer_json

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """Update the plan and wake the worker."""
        sends = self.table.receive(message)
        if isinstance(message, End):
            self._ended.append(message.session)
        self.wake.set()
        return sends

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message that cannot be handled ends its session, not the actor."""
        self.fail(message.session, error)

    def on_lost(self, name: str) -> None:
        """Without the retriever, no session of this side can continue."""
        if name == f"{self.party}/retriever":
            reason = f"The {self.party}'s retriever has stopped; {remedy_for(self.party)}."
            self.dispatch(
                [
                    Send("draft_queue", DecoderFailed(session=session, reason=reason))
                    for session in self.table.sessions
                ]
            )

    def fail(self, session: int, error: Exception) -> None:
        """Give one session up; the others continue."""
        if not isinstance(error, TandemError):
            _log.exception("%s: session %08x failed", self.name, session, exc_info=error)
            error = TandemError(f"The {self.party}'s decoder failed on this query: {error!r}; see its log.")
        self.table.sessions.pop(session, None)
        self._ended.append(session)
        self.dispatch([Send("draft_queue", DecoderFailed(session=session, reason=sendable(str(error))))])

    # ---- the model's thread ----------------------------------------------------------------------------------

    async def on_model_thread(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in the thread that owns the model."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def work(self) -> None:
        """The decoder's whole life: compute what is planned next and send the result."""
        while True:
            self.free_ended()
            job = self.table.next_job()
            if job is None:
                self.wake.clear()
                await self.wake.wait()
                continue
            try:
                self.dispatch(await self.compute(self.table.sessions[job.session], job))
            except Exception as error:
                self.fail(job.session, error)

    async def compute(self, session: DraftingSession, job: Job) -> list[Send]:
        """Run one job; nothing is sent if it was abandoned."""
        if isinstance(job, Prefill):
            return await self._prefill(session, job)
        draft = await self.draft(session, job)
        if draft is None:
            return []
        return session.finish_forward(job, draft.payload, draft.token, draft.decode_us)

    async def _prefill(self, session: DraftingSession, job: Prefill) -> list[Send]:
        """Open the session in the engine and compute its prompt."""
        started_s = time.perf_counter()
        opened = await self.on_model_thread(lambda: self._open(session, job))
        if opened is None:
            return []
        return session.finish_prefill(_elapsed_us(started_s), self.notes(opened), opened.documents)

    async def draft(self, session: DraftingSession, job: Forward) -> Draft | None:
        """Compute one draft; None if it was abandoned because its prefix was rolled back."""
        draft = await self.on_model_thread(lambda: self._forward(session, job))
        if draft is None:
            self.num_abandoned += 1
        else:
            self.num_forwards += 1
            self.decode_s += draft.decode_us / 1e6
        return draft

    def open_prompt(self, session: DraftingSession, job: Prefill) -> OpenResult:
        """Open the session in the engine, with the documents of the job as its rows."""
        return self.engine.open(
            str(job.session), job.query, job.documents, job.max_new_tokens, history=job.history
        )

    def _open(self, session: DraftingSession, job: Prefill) -> OpenResult | None:
        from tandem.engine.engine import Preempted

        opened = self.open_prompt(session, job)
        try:
            self.engine.next_logits(
                str(job.session), [], is_stale=lambda: job.session not in self.table.sessions
            )
        except Preempted:
            return None
        return opened

    def _forward(self, session: DraftingSession, job: Forward) -> Draft | None:
        from tandem.engine.drafter import Drafter
        from tandem.engine.engine import Preempted

        started_s = time.perf_counter()
        spec = session.spec
        drafter = self._drafters.setdefault(
            job.session, Drafter(self.codec, spec.sampling, spec.draft_rule, spec.vocab_size)
        )
        try:
            logits = self.engine.next_logits(
                str(job.session), job.tokens, is_stale=lambda: not session.is_current(job)
            )
        except Preempted:
            return None
        token, payload, dense = drafter.draft(
            logits,
            job.weights or (0.0,),
            seed=spec.seed,
            step=job.step,
            party=self.party,
            lineage=job.lineage,
        )
        return Draft(token, payload, dense, _elapsed_us(started_s))

    def _load(self) -> Engine:
        from tandem.loading import open_engine
        from tandem.retrieval.factory import kv_folder

        return open_engine(self.config.party(self.party), kv_folder(self.party, self.config), self._on_kv)

    def _on_kv(self, sentence: str) -> None:
        """The store of caches left something unused: log it, and add a note to the next answer."""
        _log.warning("%s: %s", self.name, sentence)
        self._kv_notes.append(sentence)

    def free_ended(self) -> None:
        """Close the engine's sessions that have ended."""
        while self._ended:
            session = self._ended.pop()
            self._drafters.pop(session, None)
            self.engine.close(str(session))

    def notes(self, opened: OpenResult) -> tuple[str, ...]:
        """Sentences for the user about documents and stored caches; each is given once."""
        notes, self._kv_notes = [sendable(note) for note in self._kv_notes], []
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

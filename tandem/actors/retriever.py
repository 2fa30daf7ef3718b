"""The retriever with one party's index, embedder and scoring model; and the actors that only have a session table.

    DraftQueue --Ballot--> Aggregator --VerifyResult--> DraftQueue
    DraftQueue --Observations--> Profiler --Profile--> Scheduler --Placement--> Aggregator, --Estimate--> DraftQueue
    Decoder --RetrieveRequest--> Retriever --RetrieveResult--> Decoder    (once per query)

Document texts go to the decoder of the same side and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tandem import plugins
from tandem.actors.base import Runtime, SiteActor, report_failure, sendable
from tandem.codecs import codec_of
from tandem.config.parties import NO_INDEX
from tandem.errors import FilterError, TandemError, describe_origin
from tandem.messages import Ballot, RetrieveFailed, RetrieveRequest, RetrieveResult
from tandem.protocol.routes import ActorKind, Send
from tandem.protocol.services import (
    AggregatingTable,
    ProfilingTable,
    SchedulingTable,
    find_documents,
    to_result,
)
from tandem.scheduler import load_policy
from tandem.topology import in_words
from tandem.transport.port import Endpoint

if TYPE_CHECKING:
    from tandem.retrieval.documents import Document
    from tandem.retrieval.embedding import TextEmbedder
    from tandem.retrieval.retriever import DocumentSearch, Hit


class AggregatorActor(SiteActor):
    """Decides steps from both sides' drafts."""

    role: ClassVar[ActorKind] = "aggregator"

    async def bind(self) -> Endpoint:
        """Open the data plane once codec and policy are loaded. Raises ConfigError."""
        load_policy(self.config.decoding.placement, self.config.scheduler.parameters, self.place)
        self.table = AggregatingTable(self.party, codec_of(self.config.codec, self.place))
        return await super().bind()

    def on_error(self, message: Any, error: TandemError) -> None:
        """A draft that cannot be decoded ends its session, not the actor."""
        super().on_error(message, error)
        if isinstance(message, Ballot):
            failed = report_failure(message.session, error)
            self.dispatch([Send("draft_queue", failed)])


class ProfilerActor(SiteActor):
    """Keeps moving averages of decode times, round trips and acceptance."""

    role: ClassVar[ActorKind] = "profiler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("scheduler", "decoder")

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table = ProfilingTable(party)


class SchedulerActor(SiteActor):
    """Advises which side should aggregate."""

    role: ClassVar[ActorKind] = "scheduler"
    dials: ClassVar[tuple[ActorKind, ...]] = ("aggregator",)

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table = SchedulingTable(party)

    async def bind(self) -> Endpoint:
        """Open the data plane once the policy is loaded. Raises ConfigError."""
        load_policy(self.config.decoding.placement, self.config.scheduler.parameters, self.place)
        return await super().bind()


REFRESH_S = 1.0
"""Between two looks whether an index that follows its files has changed."""
MAX_REMEMBERED = 4096
"""Documents whose text a client can still fetch, at most: the found ones of hundreds of queries."""

_log = logging.getLogger("tandem")


class RetrieverActor(SiteActor):
    """Searches and scores in a thread, one request at a time."""

    role: ClassVar[ActorKind] = "retriever"

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self._loaded: DocumentSearch | None = None
        self._embedder: TextEmbedder | None = None
        self._passages: OrderedDict[str, Document] = OrderedDict()  # by id, the most recent one last
        self._waiting: set[RetrieveRequest] = set()  # those in the queue or at work
        self._requests: asyncio.Queue[RetrieveRequest] = asyncio.Queue(maxsize=1024)

    @property
    def retriever(self) -> DocumentSearch:
        """The loaded index. Raises TandemError before `prepare`."""
        if self._loaded is None:
            raise TandemError(f"{self.name} has not loaded its index yet; await prepare() first.")
        return self._loaded

    # ---- control plane ---------------------------------------------------------------------------------------

    async def prepare(self) -> dict[str, Any]:
        """Load embedder, scoring model and index."""
        self._loaded, self.description = await self.in_thread(self._load)
        self.spawn(self.serve(), "serve")
        if self._watched_folder is not None:
            self.spawn(plugins.find("watcher", "beside")(self.party, self.config), "watch")
            self.spawn(self._refresh(), "refresh")
        elif self.config.party(self.party).watch:
            _log.warning(
                "%s.watch is true, but its documents are no index of files; nothing is watched.", self.party
            )
        return self.description

    async def passages(self, ids: list[str]) -> list[dict[str, Any]]:
        """The documents that were found: their title, text, page and metadata; called by this side's client only."""
        from tandem.retrieval.documents import describe_passage

        documents = [self._passages.get(name) for name in ids]
        return [{} if document is None else describe_passage(document) for document in documents]

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors of texts, each embedded separately; called by this side's client only. Raises TandemError."""
        if (embedder := self._embedder) is None:
            raise TandemError(f"{self.name} has no embedder, since {in_words(self.party)} has no documents.")
        return await self.in_thread(lambda: [embedder.embed([text])[0].tolist() for text in texts])

    async def find_refusal(self, query: str, num_documents: int, filter: str) -> list[str]:
        """Why a search would fail, before a peer hears of the query: the sentence, its code and the option at fault;
        empty: it would not, or the party answers all the same. Called by this side's client only."""
        if self.config.party(self.party).privacy:
            return []
        request = RetrieveRequest(session=0, query=query, num_documents=num_documents, filter=filter)
        try:
            await self.in_thread(lambda: self.search(request))
        except Exception as error:
            refusal = self._refuse(request, error)
            return [refusal.reason, refusal.fault.code, refusal.fault.option or ""]
        return []

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """Queue a request, unless it only repeats one that is not answered yet."""
        if message not in self._waiting:
            self._requests.put_nowait(message)
            self._waiting.add(message)
        return []

    def on_error(self, message: Any, error: TandemError) -> None:
        """An answer that cannot be sent ends its query, not the actor."""
        super().on_error(message, error)
        self.dispatch([Send("decoder", self._refuse(message, error))])

    async def serve(self) -> None:
        """Answer requests in order. One that fails ends its query, never this loop."""
        while True:
            request = await self._requests.get()
            try:
                answer = await self.in_thread(lambda request=request: self.answer(request))  # type: ignore[misc]
                self.dispatch([Send("decoder", answer)])
            except Exception as error:
                self.dispatch([Send("decoder", self._refuse(request, error))])
            finally:
                self._waiting.discard(request)

    @property
    def _watched_folder(self) -> Path | None:
        """The index that follows its files while the party runs, if one does."""
        own = self.config.party(self.party)
        return own.index_folder if own.watch and self.party in self.config.holders else None

    async def _refresh(self) -> None:
        """Open the index again soon after it changed, so that no question waits for it and its log stays short."""
        from tandem.retrieval.retriever import Retriever

        while isinstance(self._loaded, Retriever):
            await asyncio.sleep(REFRESH_S)
            await self.in_thread(self._loaded.refresh)

    def _extra_statistics(self) -> dict[str, float]:
        if self._watched_folder is None:
            return {}
        from tandem.retrieval.store import watched_since

        return {"watched_s": watched_since(self._watched_folder) or 0.0}

    def answer(self, request: RetrieveRequest) -> RetrieveResult:
        """The answer to one request; blocking. Raises TandemError."""
        started_s = time.perf_counter()
        if self.config.decoding.steps == "never":  # whatever another party asks for
            request = replace(request, wants_marks=False)
        hits = self.search(request)
        retrieve_us = int((time.perf_counter() - started_s) * 1e6)
        for hit in hits:
            self._passages[hit.id] = hit.document
            self._passages.move_to_end(hit.id)
        while len(self._passages) > MAX_REMEMBERED:
            self._passages.popitem(last=False)
        return to_result(self.retriever, request, hits, retrieve_us)

    def search(self, request: RetrieveRequest) -> Sequence[Hit]:
        """The documents for one query, best first; blocking. Raises TandemError."""
        return find_documents(self.retriever, request)

    def _refuse(self, request: RetrieveRequest, error: Exception) -> RetrieveFailed:
        """Report why a query has no documents. Other errors than Tandem's are not quoted: they may hold a document."""
        if not isinstance(error, TandemError):
            kind, where = describe_origin(error)
            _log.error("%s failed on a %s with %s at %s", self.name, type(request).__name__, kind, where)
            error = TandemError(
                f"The retriever of {in_words(self.party)} failed on this query with {kind}; see its log."
            )
        fault = error.fault
        if isinstance(error, FilterError):
            fault = replace(fault, option=f"{self.party}_filter")
        return RetrieveFailed(session=request.session, reason=sendable(str(error)), fault=fault)

    def _load(self) -> tuple[DocumentSearch | None, dict[str, Any]]:
        if self.party not in self.config.holders:
            return None, {"num_documents": 0, "factory": NO_INDEX}
        from tandem.actors.loading import load_embedder_and_scorer
        from tandem.retrieval.retriever import EMBEDDER, corpus_of, open_retriever

        embedder, scorer = load_embedder_and_scorer(self.config, num_threads=1)
        self._embedder = embedder
        retriever = open_retriever(self.party, self.config, embedder, scorer)
        retriever.search("warm up", 1)
        return retriever, {
            "embedder": embedder.name,
            "embedder_fingerprint": embedder.fingerprint,
            "scorer": EMBEDDER if scorer is None else scorer.name,
            "scorer_fingerprint": EMBEDDER if scorer is None else scorer.fingerprint,
            "num_documents": retriever.num_documents,
            "factory": retriever.kind,
            "corpus": corpus_of(self.party, self.config),
        }

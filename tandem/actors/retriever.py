"""The retriever: one side's index, embedder and scoring model.

    Decoder --Search--> Retriever --Found--> Decoder          (once a query)
    Decoder --Score---> Retriever --Relevance--> Decoder      (every few tokens, off the critical path)

Texts go to the decoder of the same side and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from dataclasses import replace
from typing import Any, ClassVar

from tandem.actors.base import Runtime, SiteActor
from tandem.errors import TandemError
from tandem.protocol.messages import (
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
)
from tandem.protocol.outbox import ActorKind, Send
from tandem.topology import Party

_log = logging.getLogger("tandem")


class RetrieverActor(SiteActor):
    """Searches and scores in a thread, one request after the other."""

    role: ClassVar[ActorKind] = "retriever"

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self._retriever: Any = None
        self._titles: dict[str, str] = {}
        self._requests: asyncio.Queue[RetrieveRequest | RescoreRequest] = asyncio.Queue(maxsize=1024)

    async def prepare(self) -> dict[str, Any]:
        """Load embedder, scoring model and index."""
        self._retriever, self.description = await self.in_thread(self._load)
        self.spawn(self._serve(), "serve")
        return self.description

    async def titles(self, ids: list[str]) -> list[str]:
        """Where this side's documents came from; asked by the client of this side only."""
        return [self._titles.get(key, "") for key in ids]

    async def texts(self, query: str, k: int) -> list[str]:
        """The texts of this side's k best documents, best first. For baselines of the evaluation alone: documents leave
        their side here. So only the cloud, whose documents are public, hands them out; TandemError on the device.
        """
        if self.party is Party.DEVICE:
            raise TandemError(
                "Only the cloud's documents, which are public, may be fetched, those of the device were asked for; "
                "ask the cloud's retriever."
            )
        hits = await self.in_thread(lambda: self._retriever.search(query, k))
        return [hit.document.page_content for hit in hits]

    def handle(self, message: Any, source: str) -> list[Send]:
        """Queue a request."""
        self._requests.put_nowait(message)
        return []

    def on_error(self, message: Any, error: TandemError) -> None:
        """An answer that cannot be sent ends its query, not the actor."""
        super().on_error(message, error)
        self.dispatch([Send("decoder", RetrieveFailed(session=message.session, reason=str(error)))])

    async def _serve(self) -> None:
        from tandem.protocol.retrieval_requests import refuse_request

        while True:
            request = await self._requests.get()
            try:
                answer: Any = await self.in_thread(lambda request=request: self._answer(request))  # type: ignore[misc]
            except TandemError as error:
                answer = refuse_request(request, error)
            except Exception as error:
                answer = RetrieveFailed(session=request.session, reason=self._failed(request, error))
            self._reply(request, answer)

    def _reply(
        self,
        request: RetrieveRequest | RescoreRequest,
        answer: RetrieveResult | RescoreResult | RetrieveFailed,
    ) -> None:
        """Send an answer; one that cannot be encoded ends its query alone."""
        try:
            self.dispatch([Send("decoder", answer)])
        except Exception as error:
            reason = self._failed(request, error)
            self.dispatch([Send("decoder", RetrieveFailed(session=request.session, reason=reason))])

    def _failed(self, request: RetrieveRequest | RescoreRequest, error: Exception) -> str:
        """A query fails, the actor goes on. What the error says is left out: it may quote a document."""
        what = type(error).__name__
        where = "".join(traceback.format_tb(error.__traceback__))
        _log.error("%s failed on a %s with %s\n%s", self.name, type(request).__name__, what, where)
        return f"The retriever of the {self.party} failed on this query with {what}; see its log."

    def _answer(self, request: RetrieveRequest | RescoreRequest) -> RetrieveResult | RescoreResult:
        from tandem.protocol.retrieval_requests import score_documents, search_documents

        if isinstance(request, RescoreRequest):
            return score_documents(self._retriever, request)
        started_s = time.perf_counter()
        found, hits = search_documents(self._retriever, request)
        self._titles.update({hit.id: str(hit.document.metadata.get("source", "")) for hit in hits})
        return replace(found, retrieve_us=int((time.perf_counter() - started_s) * 1e6))

    def _load(self) -> tuple[Any, dict[str, Any]]:
        from tandem.loading import load_embedder_and_scorer
        from tandem.retrieval.factory import open_retriever
        from tandem.retrieval.scoring import EMBEDDER

        embedder, scorer = load_embedder_and_scorer(self.config, num_threads=1)
        retriever = open_retriever(self.party, self.config, embedder, scorer)
        retriever.search("warm up", 1)
        return retriever, {
            "embedder": embedder.name,
            "embedder_fingerprint": embedder.fingerprint,
            "scorer": EMBEDDER if scorer is None else scorer.name,
            "scorer_fingerprint": EMBEDDER if scorer is None else scorer.fingerprint,
            "num_documents": retriever.num_documents,
            "factory": retriever.kind,
        }

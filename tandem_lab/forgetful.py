"""Actors that lose the first message of each kind they send: nothing within a site may depend on one message."""

from __future__ import annotations

from typing import Any

from tandem.actors.base import SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import RetrieverActor
from tandem.actors.stateless import AggregatorActor
from tandem.messages import (
    Ballot,
    DecoderReady,
    Local,
    Resync,
    RetrieveRequest,
    RetrieveResult,
    Verdict,
    VerifyResult,
    Vote,
)
from tandem.protocol.outbox import Send
from tandem.sites.port import ActorClasses

LOST: tuple[type[Any], ...] = (
    Ballot, DecoderReady, Resync, RetrieveRequest, RetrieveResult, Verdict, VerifyResult, Vote,
)  # fmt: skip


class Forgetful(SiteActor):
    """Loses one message of each kind, ever."""

    lost: frozenset[type[Any]] = frozenset()

    def dispatch(self, sends: list[Send]) -> None:
        """Deliver all but the first message of each kind."""
        kept = []
        for send in sends:
            kind = type(send.message.body if isinstance(send.message, Local) else send.message)
            if kind in LOST and kind not in self.lost:
                self.lost |= {kind}
            else:
                kept.append(send)
        super().dispatch(kept)

    def _extra_statistics(self) -> dict[str, float]:
        return {**super()._extra_statistics(), "num_lost": len(self.lost)}


class ForgetfulQueue(Forgetful, DraftQueueActor):
    """Loses a verdict, a Ballot and a Resync on their way to its own actors."""


class ForgetfulDecoder(Forgetful, DecoderActor):
    """Loses a vote, a DecoderReady and its requests to the retriever."""


class ForgetfulRetriever(Forgetful, RetrieverActor):
    """Loses a RetrieveResult."""


class ForgetfulAggregator(Forgetful, AggregatorActor):
    """Loses a VerifyResult."""


CLASSES: ActorClasses = {
    "draft_queue": ForgetfulQueue,
    "decoder": ForgetfulDecoder,
    "retriever": ForgetfulRetriever,
    "aggregator": ForgetfulAggregator,
}

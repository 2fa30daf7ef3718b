"""Actors that lose the first message of each kind they send: nothing within a site may depend on one message."""

from __future__ import annotations

from typing import Any

from tandem.actors.base import SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import RetrieverActor
from tandem.actors.stateless import AggregatorActor
from tandem.messages import (
    Adopt,
    Ballot,
    Commit,
    DecoderReady,
    Local,
    RetrieveRequest,
    RetrieveResult,
    VerifyResult,
)
from tandem.protocol.outbox import Send
from tandem.sites.port import ActorClasses

LOST: tuple[type[Any], ...] = (
    Adopt, Ballot, Commit, DecoderReady, Local, RetrieveRequest, RetrieveResult, VerifyResult,
)  # fmt: skip


class Forgetful(SiteActor):
    """Loses one message of each kind, ever."""

    lost: frozenset[type[Any]] = frozenset()

    def dispatch(self, sends: list[Send]) -> None:
        """Deliver all but the first message of each kind."""
        kept = []
        for send in sends:
            kind = type(send.message)
            if kind in LOST and kind not in self.lost:
                self.lost |= {kind}
            else:
                kept.append(send)
        super().dispatch(kept)

    def _extra_statistics(self) -> dict[str, float]:
        return {**super()._extra_statistics(), "num_lost": len(self.lost)}


class ForgetfulQueue(Forgetful, DraftQueueActor):
    """Loses a Commit, a Ballot and an Adopt."""


class ForgetfulDecoder(Forgetful, DecoderActor):
    """Loses a proposal, a DecoderReady and its requests to the retriever."""


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

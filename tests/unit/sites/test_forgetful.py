"""Actors of one process that lose the first message of each kind: the query finishes with the same tokens."""

from __future__ import annotations

from typing import Any

from tandem import Tandem
from tandem.actors.base import SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import RetrieverActor
from tandem.actors.stateless import AggregatorActor
from tandem.config.schema import Config
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

LOST = (Ballot, DecoderReady, Resync, RetrieveRequest, RetrieveResult, Verdict, VerifyResult, Vote)
NUM_LOST = 2 * (2 + 3 + 1 + 1)
"""Verdict and Ballot; Vote, DecoderReady and a request; a result; VerifyResult; perhaps a Resync."""


NOTED: list[type[Any]] = []
"""What was lost at any actor of this process."""


class Forgetful(SiteActor):
    """Loses one message of each kind, ever."""

    lost: frozenset[type[Any]] = frozenset()

    def dispatch(self, sends: list[Send]) -> None:
        kept = []
        for send in sends:
            kind = type(send.message.body if isinstance(send.message, Local) else send.message)
            if kind in LOST and kind not in self.lost:
                self.lost |= {kind}
                NOTED.append(kind)
            else:
                kept.append(send)
        super().dispatch(kept)


CLASSES: Any = {
    role: type(f"Forgetful{actor.__name__}", (Forgetful, actor), {})
    for role, actor in (
        ("draft_queue", DraftQueueActor),
        ("decoder", DecoderActor),
        ("retriever", RetrieverActor),
        ("aggregator", AggregatorActor),
    )
}


def test_a_message_lost_within_a_site_costs_time_and_nothing_else() -> None:
    config = Config.load(None, ("link.on_peer_loss=wait",))
    with Tandem.launch(config, runtime="inline", actor_classes=CLASSES) as rag:
        losing, whole = (
            rag.query("Which game should Mira try?", seed=1, max_new_tokens=16, timeout_s=60)
            for _ in range(2)
        )
    assert losing.token_ids == whole.token_ids
    assert len(whole.token_ids) > 4
    assert len(NOTED) >= NUM_LOST

"""Actors of one process that lose the first message of each kind: the query finishes with the same tokens."""

from __future__ import annotations

from tandem import Tandem
from tandem.config.schema import Config
from tandem_lab.forgetful import CLASSES

NUM_LOST = 2 * (2 + 3 + 1 + 1)
"""Verdict and Ballot; Vote, DecoderReady and a request; a result; VerifyResult; perhaps a Resync."""


def test_a_message_lost_within_a_site_costs_time_and_nothing_else() -> None:
    config = Config.load(None, ("link.on_peer_loss=wait",))
    with Tandem.launch(config, runtime="inline", actor_classes=CLASSES) as rag:
        losing, whole = (
            rag.query("Which game should Mira try?", seed=1, max_new_tokens=16, timeout_s=60)
            for _ in range(2)
        )
        lost = sum(actor["extra"].get("num_lost", 0) for actor in rag.status()["actors"])
    assert losing.token_ids == whole.token_ids
    assert len(whole.token_ids) > 4
    assert lost >= NUM_LOST

"""What the settings say of every query: the part of a session's spec that is the same for all questions.

Knows settings and the fields of a spec; nothing of a question, its seed, a model's end-of-sequence ids, or who is
asked.
"""

from __future__ import annotations

from tandem.config import Config
from tandem.protocol.spec import SessionSpec


def spec_of(config: Config) -> SessionSpec:
    """The spec with all that `config` determines.

    `session`, `query`, `seed` and `eos_token_ids` are empty: whoever asks fills them in (dataclasses.replace).
    """
    generation, weights, link = config.generation, config.weights, config.link
    return SessionSpec(
        session=0,
        query="",
        seed=0,
        draft_rule=generation.draft_rule,
        temperature=generation.temperature,
        placement=generation.placement,
        synchronous=generation.synchronous,
        max_new_tokens=generation.max_new_tokens,
        stop_strings=generation.stop,
        device_documents=config.device.num_documents,
        cloud_documents=config.cloud.num_documents,
        relevance_scale=weights.scale,
        weight_interval=weights.interval,
        weight_lag=weights.lag,
        weight_momentum=weights.momentum,
        max_window=generation.max_window,
        on_peer_loss=link.on_peer_loss,
        peer_loss_margin_s=link.peer_loss_margin_s,
    )

"""Where log probabilities can be had (the query's home must decide, by votes that it knows in full), and as fields."""

from __future__ import annotations

from typing import Any

from tandem.errors import ConfigError
from tandem.events import TokenLogprob
from tandem.protocol.messages import Logprobs
from tandem.protocol.spec import SessionSpec
from tandem.protocol.wire import MAX_FRAME_BYTES
from tandem.topology import Party

BYTES_PER_TOKEN = 4
"""Of the vocabulary, in a vote in full."""


def check_logprobs(spec: SessionSpec) -> None:
    """Raises ConfigError if `num_logprobs` is wanted where the home does not know the target distribution."""
    if spec.num_logprobs is None:
        return
    if spec.votes_are_tokens:
        raise ConfigError(
            f'num_logprobs needs the target distribution at home, but in mode "{spec.mode}" the cloud sends tokens '
            'alone; set mode to "dual".'
        )
    if spec.roles.mode == "dual" and not (spec.is_mirrored or spec.placement == Party.DEVICE):
        raise ConfigError(
            f'num_logprobs needs every token to be decided at home, but with placement "{spec.placement}" the cloud '
            'may decide and sends tokens alone; set placement to "mirror" or "device".'
        )
    num_votes = len(spec.roles.voters) * (1 + spec.longest_proposal) if spec.roles.mode == "federated" else 0
    if spec.has_race_lists and num_votes * BYTES_PER_TOKEN * spec.vocab_size > MAX_FRAME_BYTES // 2:
        raise ConfigError(
            f"num_logprobs has {len(spec.roles.voters)} workers send whole distributions over {spec.vocab_size} tokens "
            f"for {1 + spec.longest_proposal} tokens at a time, which exceeds a message of {MAX_FRAME_BYTES} bytes; "
            "lower max_proposal, or set codec.name to top_p."
        )


def name_logprobs(token: int, known: Logprobs | None) -> dict[str, Any]:
    """Fields of a `TokenEvent`."""
    if known is None:
        return {}
    top = zip(known.top_ids, known.top_logprobs, strict=True)
    return {
        "logprob": TokenLogprob(token=token, logprob=known.logprob),
        "top_logprobs": tuple(TokenLogprob(token=index, logprob=logprob) for index, logprob in top),
    }

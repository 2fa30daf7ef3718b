"""Laws, codecs and draft rules: everything that decides which token is committed.

Pure functions of laws, weights, seeds and steps. Knows nothing of models, actors, time or the network.
"""

from tandem.aggregation.codec import Codec, TopP, make_codec
from tandem.aggregation.law import Law
from tandem.aggregation.mixture import shares, target_law
from tandem.aggregation.rules import Decision, DraftRule, SingleDecision, draft_rule

__all__ = [
    "Codec",
    "Decision",
    "DraftRule",
    "Law",
    "SingleDecision",
    "TopP",
    "draft_rule",
    "make_codec",
    "shares",
    "target_law",
]

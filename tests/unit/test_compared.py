"""What both sides must have in common before the first question, and that each side says it."""

from __future__ import annotations

import re

import pytest

from tandem.errors import ClusterError
from tandem.sites.startup import HANDSHAKE_FIELDS, compare
from tandem.topology import PARTIES, Party

SAME = dict.fromkeys(HANDSHAKE_FIELDS, "same")


@pytest.mark.parametrize("key", HANDSHAKE_FIELDS)
def test_a_difference_is_an_error_that_names_both_values_and_the_remedy(key: str) -> None:
    compare({party: dict(SAME) for party in PARTIES})
    described = {Party.DEVICE: {**SAME, key: "one"}, Party.CLOUD: {**SAME, key: "other"}}
    what, remedy = HANDSHAKE_FIELDS[key]
    values = ("one", "other")
    if key == "vocabulary_fingerprint":  # a hash, so the tokenizer is named
        described[Party.DEVICE]["tokenizer"] = described[Party.CLOUD]["tokenizer"] = "GPT-2"
        values = ("GPT-2 (one)", "GPT-2 (other)")
    sentence = f"the same {what}, the device has {values[0]!r} and the cloud {values[1]!r}; {remedy}."
    with pytest.raises(ClusterError, match=re.escape(sentence)):
        compare(described)


def test_vocabularies_that_differ_by_their_last_tokens_are_the_same() -> None:
    few = {**SAME, "vocabulary_fingerprint": "b", "vocabulary_prefixes": ["b", "a"], "vocab_size": 9}
    more = {**SAME, "vocabulary_fingerprint": "d", "vocabulary_prefixes": ["d", "c", "b"], "vocab_size": 11}
    compare({Party.DEVICE: few, Party.CLOUD: more})
    compare({Party.DEVICE: more, Party.CLOUD: few})
    for prefixes in (["d", "c", "x"], ["d", "c"], []):
        with pytest.raises(ClusterError, match="must have the same vocabulary"):
            compare({Party.DEVICE: few, Party.CLOUD: {**more, "vocabulary_prefixes": prefixes}})

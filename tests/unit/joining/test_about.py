"""What a cloud says of itself, as a device reads it."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import ProtocolError
from tandem.joining.about import About, describe_publicly, read_about

TOLD: dict[str, Any] = {
    "protocol_version": 6,
    "vocabulary_fingerprint": "abc",
    "tokenizer": "bytes",
    "weights_fingerprint": "def",
    "codec": "token",
    "race_depth": 8,
    "policy": "greedy",
    "length_policy": "fixed",
    "vocab_size": 8,
    "eos_token_ids": [0],
    "context_length": 512,
    "num_documents": 3,
    "decode_line": [0.1],
}


def test_a_cloud_says_how_many_queries_a_device_may_ask_at_once() -> None:
    told = describe_publicly(TOLD | {"max_queries": 3, "model": "/home/secret"})
    assert read_about(told) == About(**TOLD, max_queries=3)


def test_a_cloud_need_not_say_it() -> None:
    about = read_about(TOLD)
    assert about.max_queries is None
    assert "max_queries" not in about.as_description()


@pytest.mark.parametrize("bad", [0, -1, 1.5, "4", True])
def test_a_number_that_makes_no_sense_is_refused(bad: object) -> None:
    with pytest.raises(ProtocolError, match="at 'max_queries'; install the same version"):
        read_about(TOLD | {"max_queries": bad})


def test_a_cloud_says_whether_its_documents_come_with_tandem() -> None:
    assert read_about(describe_publicly(TOLD | {"corpus": "household"})).corpus == "household"
    assert "corpus" not in read_about(TOLD).as_description()  # one of an earlier version

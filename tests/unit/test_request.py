"""Every setting that a session's spec has a field for arrives there, and nothing else is filled in."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from tandem.config import Config, GenerationConfig, LinkConfig, PartyConfig, WeightsConfig
from tandem.errors import QueryError
from tandem.lab.quality.heldout import heldout_spec
from tandem.protocol.spec import SessionSpec
from tandem.request import build_spec, spec_of
from tandem.topology import PARTIES, Party

UNUSUAL = Config(
    device=PartyConfig(num_documents=2),
    cloud=PartyConfig(num_documents=5),
    generation=GenerationConfig(
        temperature=0.7,
        max_new_tokens=9,
        stop=("\n",),
        draft_rule="algorithm1",
        placement="cloud",
        synchronous=True,
        max_window=3,
    ),
    weights=WeightsConfig(scale=2.5, interval=7, lag=4, momentum=0.25),
    link=LinkConfig(on_peer_loss="fail", peer_loss_margin_s=0.5),
)
WANTED = SessionSpec(
    session=0,
    query="",
    seed=0,
    draft_rule="algorithm1",
    temperature=0.7,
    placement="cloud",
    synchronous=True,
    max_new_tokens=9,
    stop_strings=("\n",),
    device_documents=2,
    cloud_documents=5,
    relevance_scale=2.5,
    weight_interval=7,
    weight_lag=4,
    weight_momentum=0.25,
    max_window=3,
    on_peer_loss="fail",
    peer_loss_margin_s=0.5,
)


def test_settings_fill_the_spec() -> None:
    assert spec_of(UNUSUAL) == WANTED
    assert SessionSpec.from_json(spec_of(UNUSUAL).to_json()) == WANTED


def test_what_no_setting_says_stays_empty() -> None:
    bare, unusual = spec_of(Config()), spec_of(UNUSUAL)
    same = {
        each.name for each in fields(SessionSpec) if getattr(bare, each.name) == getattr(unusual, each.name)
    }
    assert same >= {"session", "query", "seed", "eos_token_ids"}


def test_held_out_questions_are_asked_token_by_token() -> None:
    wanted = replace(WANTED, placement="device", stop_strings=(), on_peer_loss="continue")
    assert heldout_spec(replace(UNUSUAL, generation=replace(UNUSUAL.generation, synchronous=False))) == wanted


DESCRIBED: dict[Party, dict[str, Any]] = {
    party: {"decode_line": [], "eos_token_ids": [number]} for number, party in enumerate(PARTIES)
}


def test_filters_travel_as_json_and_the_device_s_stays_on_the_device() -> None:
    spec = build_spec(
        Config(),
        DESCRIBED,
        "Why?",
        device_filter={"source": "diary.md", "page": (1, 2)},
        cloud_filter={"year": 2024},
    )
    assert json.loads(spec.filter(Party.DEVICE)) == {"source": "diary.md", "page": [1, 2]}
    assert json.loads(spec.filter(Party.CLOUD)) == {"year": 2024}
    assert spec.as_for(Party.DEVICE) == spec
    assert "diary" not in spec.as_for(Party.CLOUD).to_json()
    assert spec.as_for(Party.CLOUD).filter(Party.CLOUD) == spec.filter(Party.CLOUD)
    for nothing in (None, {}):
        assert build_spec(Config(), DESCRIBED, "Why?", device_filter=nothing).device_filter == ""


@pytest.mark.parametrize(
    "given", ["source", ["source"], {1: "a"}, {"page": None}, {"page": [[1]]}, {"page": {"a": 1}}]
)
def test_what_is_no_filter(given: Any) -> None:
    with pytest.raises(
        QueryError, match=r"^device_filter is metadata as .* give texts, numbers or lists of them"
    ):
        build_spec(Config(), DESCRIBED, "Why?", device_filter=given)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"device_filter": {"page": list(range(600_000))}},
            r"travels as at most 4000000 bytes, this one has \d{7}",
        ),
        ({"device_filter": {"source": "\N{GRINNING FACE}" * 320_000}}, r"travels as at most 4000000 bytes"),
        ({"device_filter": {"page": 10**5000}}, r"^device_filter holds a number that cannot be written: "),
        (
            {"alone": "cloud", "device_filter": {"page": 1}},
            r"^device_filter is for documents of the device, but the cloud was asked alone; leave it out",
        ),
    ],
)
def test_filters_that_no_query_can_have(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        build_spec(Config(), DESCRIBED, "Why?", **options)


def test_a_question_that_no_message_holds() -> None:
    with pytest.raises(QueryError, match=r"^A query with its filters travels as at most"):
        build_spec(Config(), DESCRIBED, "\N{GRINNING FACE}" * 400_000)

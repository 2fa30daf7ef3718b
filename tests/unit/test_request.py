"""Every setting that a session's spec has a field for arrives there, and nothing else is filled in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from tandem.client.request import QueryOptions, build_spec, notes_on, spec_of
from tandem.config.checks import settings_of
from tandem.config.schema import (
    Config,
    DecodingConfig,
    DecodingOptions,
    LinkConfig,
    PartyConfig,
    SamplingOptions,
    SamplingParams,
    WeightsConfig,
)
from tandem.conversation import Message
from tandem.errors import Code, ConfigError, ProtocolError, QueryError, TandemError
from tandem.modes import SessionSpec
from tandem.topology import PARTIES, Party

UNUSUAL = Config(
    device=PartyConfig(num_documents=2, documents="both"),
    cloud=PartyConfig(num_documents=5),
    sampling=SamplingParams(temperature=0.7, top_k=40, min_p=0.05, max_new_tokens=9, stop=("\n",)),
    decoding=DecodingConfig(draft_rule="algorithm1", placement="cloud", max_window=3),
    weights=WeightsConfig(scorer="cross-encoder", question=0.75, evidence=0.5),
    link=LinkConfig(on_peer_loss="fail", peer_loss_margin_s=0.5),
)
WANTED = SessionSpec(
    session=0,
    query="",
    seed=0,
    sampling=UNUSUAL.sampling,
    decoding=UNUSUAL.decoding,
    documents={"device": 2, "cloud": 5},
    relevance_scale=1.0,
    question_weight=0.75,
    evidence_weight=0.5,
    evidence_memory=0.8,
    layouts={"device": "both"},
    on_peer_loss="fail",
    peer_loss_margin_s=0.5,
    race_depth=8,
)


def test_settings_fill_the_spec() -> None:
    assert spec_of(UNUSUAL) == WANTED
    assert SessionSpec.from_json(spec_of(UNUSUAL).to_json()) == WANTED


DESCRIBED: dict[Party, dict[str, Any]] = {
    party: {"decode_line": [], "eos_token_ids": [number]} for number, party in enumerate(PARTIES)
}


def test_a_policy_of_ones_own_is_one_that_both_parties_have_loaded() -> None:
    loaded = {party: {**DESCRIBED[party], "policy": "own:Stay(patience=2)"} for party in PARTIES}
    assert build_spec(Config(), loaded, "Why?", placement="own:Stay").decoding.placement == "own:Stay"
    with pytest.raises(ConfigError) as caught:
        build_spec(Config(), loaded | {Party.CLOUD: DESCRIBED[Party.CLOUD]}, "Why?", placement="own:Stay")
    assert str(caught.value) == (
        "The cloud has not loaded the placement policy 'own:Stay' (it has none); name it as decoding.placement in the "
        "settings of both parties and start them again."
    )
    assert build_spec(Config(), DESCRIBED, "Why?", placement="mirror").decoding.placement == "mirror"


def test_an_answer_is_of_the_tokens_that_all_parties_have() -> None:
    sizes = {Party.DEVICE: 2002, Party.CLOUD: 2000}
    described = {
        party: {**DESCRIBED[party], "eos_token_ids": [7, 1999, 2001], "vocab_size": sizes[party]}
        for party in PARTIES
    }
    spec = build_spec(Config(), described, "Why?")
    assert (spec.vocab_size, spec.eos_token_ids) == (2000, (7, 1999))
    alone = build_spec(Config(), described, "Why?", only="device")
    assert (alone.vocab_size, alone.eos_token_ids) == (2002, (7, 1999, 2001))


def test_the_day_is_named_where_a_template_writes_it() -> None:
    assert build_spec(Config(), DESCRIBED, "Why?", day="2026-11-25").day == ""
    described = {**DESCRIBED, Party.CLOUD: {**DESCRIBED[Party.CLOUD], "writes_day": True}}
    spec = build_spec(Config(), described, "Why?", day="2026-11-25")
    assert SessionSpec.from_json(spec.to_json()).day == "2026-11-25"
    assert build_spec(Config(), described, "Why?").day == date.today().isoformat()
    assert build_spec(Config(), described, "Why?", only="device").day == ""
    for wrong in ("25.11.2026", "2026-02-30"):
        with pytest.raises(ConfigError, match=r"^day must be a date such as 2026-11-25 \(got "):
            build_spec(Config(), described, "Why?", day=wrong)


def test_votes_are_race_lists_if_the_parties_and_the_question_have_them() -> None:
    """The parties began with their codec, whatever a later client has in its settings."""
    loaded = {party: {**DESCRIBED[party], "race_depth": 4} for party in PARTIES}
    assert build_spec(Config(), loaded, "Why?").race_depth == 4
    assert build_spec(Config(), DESCRIBED, "Why?").race_depth == 0
    nuclei = Config.load(None, ["codec.name=top_p"])
    assert build_spec(nuclei, loaded, "Why?").race_depth == 0
    spec = build_spec(Config(), loaded, "Why?", draft_rule="algorithm1", placement="device")
    assert not spec.rules.has_race_lists


def test_filters_travel_as_json_and_the_device_s_stays_on_the_device() -> None:
    own = {"source": "diary.md", "page": (1, 2)}
    spec = build_spec(Config(), DESCRIBED, "Why?", device_filter=own, cloud_filter={"year": 2024})
    assert json.loads(spec.filter(Party.DEVICE)) == {"source": "diary.md", "page": [1, 2]}
    assert json.loads(spec.filter(Party.CLOUD)) == {"year": 2024}
    assert spec.as_for(Party.DEVICE) == spec
    assert "diary" not in spec.as_for(Party.CLOUD).to_json()
    assert spec.as_for(Party.CLOUD).filter(Party.CLOUD) == spec.filter(Party.CLOUD)
    for nothing in (None, {}):
        assert build_spec(Config(), DESCRIBED, "Why?", device_filter=nothing).device_filter == ""


HALF = "must be Unicode, without numbers of thousands of digits"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(({"device_filter": given}, "^device_filter must be a valid ") for given in ("source", ["source"], {1: "a"})),
        *(({"device_filter": given}, "^device_filter must hold texts, numbers or lists of them, as in ")
          for given in ({"page": None}, {"page": [[1]]}, {"page": {"a": 1}})),
        ({"device_filter": {"page": list(range(600_000))}}, r"travels as at most 4000000 bytes, this one has \d{7}"),
        ({"device_filter": {"page": 10**5000}}, f"^device_filter {HALF}"),
        ({"cloud_filter": {"half \udc00": 1}}, f"^cloud_filter {HALF}"),
        ({"device_filter": {"source": ["a.txt", "\ud83d"]}}, f"^device_filter {HALF}"),
        ({"only": "cloud", "device_filter": {"page": 1}},
         "^device_filter is for documents of the device, but the cloud was asked alone; leave it out"),
    ],
)  # fmt: skip
def test_filters_that_no_query_can_have(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TandemError, match=sentence) as caught:
        build_spec(Config(), DESCRIBED, "Why?", **options)
    assert caught.value.code in (Code.INVALID, Code.TOO_LONG)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        *((given, f"A question is a text, but it is {given!r}; give a str.") for given in (None, 3, ["?"], b"?")),
        *((given, f"The question is empty (got {given!r}); ask something.") for given in ("", "  \n")),
        ("Why \ud800?", "The question and its filters must be Unicode, but they hold half a surrogate pair; remove"),
        ("\N{GRINNING FACE}" * 1_100_000, "A query with its filters travels as at most 4000000 bytes, this one has"),
    ],
)  # fmt: skip
def test_what_is_no_question(question: Any, sentence: str) -> None:
    with pytest.raises(QueryError, match=f"^{re.escape(sentence)}"):
        build_spec(Config(), DESCRIBED, question)


def test_options_replace_settings_for_one_query() -> None:
    options: QueryOptions = {
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["."],
        "placement": "device",
        "max_window": None,
    }
    spec = build_spec(UNUSUAL, DESCRIBED, "Why?", **options)
    assert spec.sampling == replace(UNUSUAL.sampling, temperature=0.5, top_k=3, stop=(".",))
    assert spec.decoding == replace(UNUSUAL.decoding, placement="device")
    assert spec.on_peer_loss == "fail"
    assert build_spec(UNUSUAL, DESCRIBED, "Why?", on_peer_loss="wait").on_peer_loss == "wait"


def test_options_are_the_settings_and_a_few_more() -> None:
    for options, group in ((SamplingOptions, SamplingParams), (DecodingOptions, DecodingConfig)):
        assert list(options.__annotations__) == [setting.name for setting in settings_of(group)]
        assert set(options.__annotations__) < set(QueryOptions.__annotations__)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": "moon"}, "A party is device or cloud, not 'moon'; name one of the two."),
        ({"temprature": 1}, "temprature does not exist; the nearest is 'temperature'."),
        ({"max_tokens": 4}, "max_tokens does not exist; the nearest is 'max_new_tokens'."),
        ({"temperature": -1.0}, "temperature must be greater than or equal to 0 (got -1.0); the default is 0.0."),
        *(
            ({name: value}, f"{name} must be {expected} (got {value!r}); correct it or omit it.")
            for name, value, expected in (
                ("stop", ["a", 1], "a valid string or a valid tuple"),
                ("max_new_tokens", "4", "a valid integer"),
                ("only", 3, "a valid string"),
                ("seed", -1, "greater than or equal to 0"),
                ("seed", 1 << 64, f"less than {1 << 64}"),
                *(("seed", seed, "a valid integer") for seed in ("7", 1.5, True)),
                *(("timeout_s", limit, "greater than 0") for limit in (0, -1.0)),
                *(("timeout_s", limit, "a valid number") for limit in ("9", True)),
                *(("timeout_s", limit, "a finite number") for limit in (float("nan"), float("inf"))),
                ("show_drafts", "yes", "a valid boolean"),
                ("on_peer_loss", "cry", "'continue', 'wait' or 'fail'"),
                ("sampling", {"top_k": 3}, "an instance of SamplingParams"),
                ("num_logprobs", 21, "less than or equal to 20"),
                ("grammar", {}, 'one of {"json_schema": object}, {"regex": text} and {"lark": text}'),
            )
        ),
        ({"logit_bias": {7: 101}}, "logit_bias must be less than or equal to 100 (got 101); correct it or omit it."),
        ({"logit_bias": {"the": 1}},
         "logit_bias must be a valid integer, unable to parse string as an integer (got 'the'); correct it or omit "
         "it."),
        *(({"mode": mode, "draft_rule": rule},
           f'The draft rule "{rule}" is for mode "{other}", but decoding.mode is "{mode}"; set the rule to "auto", or '
           "change the mode.")
          for mode, rule, other in (
              ("speculative", "algorithm1", "dual"),
              ("dual", "rejection", "speculative"),
              ("speculative", "lottery", "dual or federated"),
          )),
        ({"draft_rule": "lottery", "temperature": 0.0},
         'Under the draft rule "lottery" there is nothing to draw at temperature 0; raise it, or set draft_rule to '
         '"coupled".'),
        ({"draft_rule": "lottery", "temperature": 0.7, "num_logprobs": 2},
         'Under the draft rule "lottery" nobody knows the mixture, nor log probabilities in it; ask for none, or set '
         'draft_rule to "coupled".'),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        build_spec(Config(), DESCRIBED, "Why?", **options)


def test_what_fits_no_context_is_refused_before_any_work() -> None:
    known: Any = {
        party: DESCRIBED[party] | {"context_length": length, "longest_token": 6}
        for party, length in zip(PARTIES, (200, 100), strict=True)
    }
    assert build_spec(Config(), known, "é" * 300).query
    assert build_spec(Config(), known, "é" * 600, only="device").query
    with pytest.raises(QueryError) as caught:
        build_spec(Config(), known, "é" * 300 + "?")
    assert caught.value.code is Code.TOO_LONG
    assert str(caught.value) == (
        "The question of 601 bytes does not fit the model's context of 100 tokens, which have at most 600 bytes; "
        "shorten it, or use a model with a longer context."
    )
    history = [Message("user", "x" * 300), Message("assistant", "x" * 300)]
    with pytest.raises(QueryError, match=r"The conversation of 601 bytes does not fit .* begin a new one"):
        build_spec(Config(), known, "?", history=history)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"session": "1"}'])
def test_a_malformed_spec_is_one_sentence(text: str) -> None:
    with pytest.raises(
        ProtocolError, match=r"^The spec of a session is malformed at .*same version"
    ) as caught:
        SessionSpec.from_json(text)
    assert "pydantic" not in str(caught.value)


# ---- history -------------------------------------------------------------------------------------------------

TURNS = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Mira."}]


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ("Who?", "history is a list of messages, but it is 'Who?'; give a list."),
        (TURNS[0], f"history is a list of messages, but it is {TURNS[0]}; give a list."),
        ([{"role": "user"}],
         'A message of history is {"role": "user" or "assistant", "content": text}, but message 0 is '
         "{'role': 'user'}; correct it."),
        ([{"role": "system", "content": "Be brief."}],
         "A message of history has the role user or assistant, but message 0 has 'system'; set system_prompt."),
        ([TURNS[1]],
         "history alternates between user and assistant and begins with user, but message 0 is of assistant; correct "
         "the order."),
        (TURNS[:1], "history ends with an answer, but its last message is of user ('Who?'); ask that as the question."),
        ([*TURNS, {"role": "tool", "content": "7"}],
         "A message of history has the role user or assistant, but message 2 has 'tool'; use one of the two."),
        ([TURNS[0], {"role": "assistant", "content": "", "tool_calls": [1]}],
         'A message of history is {"role": "user" or "assistant", "content": text}, but message 1 is '
         "{'role': 'assistant', 'content': '', 'tool_calls': [1]}; correct it."),
    ],
)  # fmt: skip
def test_wrong_history_is_one_sentence(history: Any, sentence: str) -> None:
    with pytest.raises(QueryError) as raised:
        build_spec(Config(), DESCRIBED, "And why?", history=history)
    assert str(raised.value) == sentence


PRINTS = {"weights_fingerprint": "w", "template_fingerprint": "t", "vocab_size": 50}
ALIKE: dict[Party, dict[str, Any]] = {party: DESCRIBED[Party.DEVICE] | PRINTS for party in PARTIES}
NONE = {"factory": "none", "num_documents": 0}


def with_cloud(**changes: Any) -> dict[Party, dict[str, Any]]:
    return {**ALIKE, Party.CLOUD: ALIKE[Party.CLOUD] | changes}


@pytest.mark.parametrize(
    ("described", "options", "is_alone"),
    [
        (with_cloud(**NONE), {}, True),
        (with_cloud(factory="Flat", num_documents=3), {"num_documents": {"cloud": 0}}, True),
        (with_cloud(factory="Flat", num_documents=3), {}, False),
        (with_cloud(factory="Flat", num_documents=0), {}, False),  # it may be filled
        (with_cloud(factory="langchain", num_documents=None), {}, False),
        (with_cloud(**NONE, weights_fingerprint="x"), {}, False),
        (with_cloud(**NONE, weights_fingerprint=""), {}, False),
        (with_cloud(**NONE, template_fingerprint="x"), {}, False),
        (
            {Party.DEVICE: ALIKE[Party.DEVICE]},
            {"num_documents": {"cloud": 0}},
            False,
        ),  # it has not joined yet
        (with_cloud(**NONE), {"mode": "dual"}, False),
        (with_cloud(**NONE), {"mode": "speculative"}, False),
        (with_cloud(**NONE), {"placement": "cloud"}, False),
        (with_cloud(**NONE), {"cloud_filter": {"source": "a.txt"}}, False),
    ],
)
def test_a_cloud_that_adds_nothing_is_not_asked(
    described: dict[Any, dict[str, Any]], options: dict[str, Any], is_alone: bool
) -> None:
    spec = build_spec(Config(), described, "Why?", **options)
    assert (spec.only, spec.rules.name == "solo") == (("device", True) if is_alone else (None, False))
    has_index = described.get(Party.CLOUD, {}).get("factory") != "none"
    assert bool(notes_on(spec, described, options)) is (is_alone and has_index)
    asked = build_spec(Config(), described, "Why?", only="device") if is_alone else spec
    assert notes_on(asked, described, {"only": "device"}) == ()
    assert replace(asked, session=spec.session, seed=spec.seed, documents=spec.documents) == spec

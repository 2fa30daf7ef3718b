"""What a device may ask of a cloud: every field of a query has bounds, and what is beyond ends nothing but itself."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from tandem.codecs import RaceLists
from tandem.codecs.base import MAX_VOCAB
from tandem.config.schema import DecodingConfig, DevicesConfig, SamplingParams
from tandem.errors import Code, ProtocolError
from tandem.messages import Begin, Open
from tandem.modes import SessionSpec
from tandem.modes.query import QuerySpec
from tandem.protocol.admission import check_spec
from tandem.protocol.decoding import DecodingTable
from tandem.protocol.services import AggregatingTable, ProfilingTable, SchedulingTable
from tandem.protocol.table import CoordinatorTable
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.modes.test_modes import WIRE
from tests.unit.protocol.talk import frame

NAN, HUGE = float("nan"), 10**30
BEYOND: dict[str, list[Any]] = {
    "session": [-1, 1 << 32, "1", 1.5], "query": [5, None, "x" * 70_000], "seed": [-1, 1 << 64],
    "sampling": [{}.keys, []], "decoding": [[], "dual"],
    "documents": [{"cloud": -1}, {"cloud": 65}, {"cloud": HUGE}, {"x" * 1000: 1}, {"": 1},
                  {str(n): 1 for n in range(99)}],
    "relevance_scale": [-1.0, 1e7, NAN, float("inf"), "10"], "question_weight": [-2.0, 101.0, NAN],
    "evidence_weight": [-0.1, 101.0, NAN], "evidence_memory": [-0.1, 1.1, NAN],
    "on_peer_loss": ["", "panic", 1], "peer_loss_margin_s": [-1.0, 1e10, NAN], "peer_stall_s": [0.0, -1.0, 1e10, NAN],
    "max_peer_share": [0.0, -1.0, 1.1, NAN],
    "weights_fingerprints": [{"device": "x" * 300}, {str(n): "" for n in range(99)}, ["x"]],
    "eos_token_ids": [[-1], [HUGE], [MAX_VOCAB], [1] * 300, ["1"]], "vocab_size": [0, -1, MAX_VOCAB + 1, 1.5],
    "device_decode_line": [[0.0] * 9, [1.0], [0.0] * 4, [NAN], [1e9], [HUGE]],
    "cloud_decode_line": [[0.0] * 9, [NAN], [-1e9]],
    "only": ["", 1, "x" * 300], "device_filter": ["{}", 1], "cloud_filter": ["x" * 70_000, {}],
    "history": [[{"role": "system", "content": "x"}], [{"role": "user"}], "x",
                [{"role": "user", "content": ""}] * 5000],
    "show_drafts": [1, "true"], "workers": [["a"], [""], ["w"] * 99],
    "weights": [[0.5, 0.5], [-0.1], [NAN], [0.0] * 99], "race_depth": [-1, 1025, HUGE], "num_logprobs": [-1, 21, True],
    "layouts": [{"device": "tables"}, {"x" * 1000: "rows"}, {str(n): "rows" for n in range(99)}],
    "has_several_models": [2, "no"], "day": ["x" * 300, 20261125], "system_prompt": [1, "x" * 70_000],
    "logit_bias": [[[1, 101.0]], [[-1, 0.0]], [[1, NAN]], [[1, 1.0]] * 2000, {"1": 1.0}], "grammar": [1, "x" * 70_000],
    "search": [1, "x" * 70_000], "pieces": [1, "x" * 300], "wants_marks": [],  # it changes no token, so it is left out
}  # fmt: skip
"""Below, above and of the wrong kind, for each field of a query."""
BEYOND_SAMPLING: dict[str, list[Any]] = {
    "temperature": [-0.1, NAN, float("inf"), "1"], "top_k": [-1, HUGE, 1.5], "min_p": [-0.1, 1.1, NAN],
    "top_p": [0.0, 1.1, NAN], "presence_penalty": [2.1, -2.1, NAN], "frequency_penalty": [2.1, -2.1, "1"],
    "max_new_tokens": [0, -1, HUGE, 1.5], "stop": [[""], ["x"] * 100, ["x" * 70_000], 1],
}  # fmt: skip
BEYOND_DECODING: dict[str, list[Any]] = {
    "mode": ["", "duel", "federated"], "draft_rule": ["", "rejection"],
    "placement": ["", "moon", "os:getcwd", "a:" + "b" * 300],
    "max_window": [0, 1025, HUGE], "max_proposal": [-1, 17, 10**9],
    "length_policy": ["", "worst", "a:" + "b" * 300], "uplink_budget_bits": [-1, HUGE],
    "pacing": ["", "slowly"], "home": ["ada", "x" * 300],
    "patience_s": [0.0, -1.0, NAN, "1", None], "steps": ["", "sometimes"],
}  # fmt: skip


def asked(group: str, name: str, value: Any) -> str:
    """The spec of a query in which one thing is wrong, as a device writes it."""
    spec = json.loads(make_spec(placement="mirror").to_json())
    if group:
        spec.setdefault(WIRE[group], {})[name] = value
    else:
        spec[WIRE[name]] = value
    return json.dumps(spec, default=str)


CASES = [
    (group, name, value)
    for group, beyond in (("", BEYOND), ("sampling", BEYOND_SAMPLING), ("decoding", BEYOND_DECODING))
    for name, values in beyond.items()
    for value in values
]


def test_all_fields_are_tried() -> None:
    for group, beyond in (
        (QuerySpec, BEYOND),
        (SamplingParams, BEYOND_SAMPLING),
        (DecodingConfig, BEYOND_DECODING),
    ):
        assert beyond.keys() == {field.name for field in fields(group)}  # type: ignore[arg-type]


@pytest.mark.parametrize(("group", "name", "value"), CASES, ids=lambda part: f"{part!r:.30}")
def test_what_is_beyond_a_bound_is_refused_in_one_sentence(group: str, name: str, value: Any) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_spec(SessionSpec.from_json(asked(group, name, value)), DevicesConfig().max_answer_tokens)
    sentence = str(refused.value)
    assert sentence.isprintable()
    assert sentence.endswith(".")
    assert len(sentence) < 450


ALLOWED: dict[str, list[Any]] = {
    "session": [0, (1 << 32) - 1], "seed": [0, (1 << 64) - 1], "documents": [{}, {"cloud": 64}],
    "relevance_scale": [0, 1e6], "question_weight": [-1, 0, 100], "evidence_weight": [0.0, 100.0],
    "evidence_memory": [0.0, 1.0], "peer_loss_margin_s": [0.0, 1e9], "peer_stall_s": [1e-9, 1e9],
    "max_peer_share": [1e-9, 1.0], "eos_token_ids": [[], list(range(256))], "vocab_size": [MAX_VOCAB],
    "device_decode_line": [[], [0.0, 1.0, 0.0, 0.0]], "cloud_decode_line": [[1e6, 1e6, 0.0, 0.0]],
    "race_depth": [0, 1024], "num_logprobs": [0, 20], "cloud_filter": ["", "not JSON"],
    "layouts": [{"cloud": "both"}, {"moon": "rows"}], "weights_fingerprints": [{}, {"cloud": "x" * 256}],
    "day": ["", "never"], "query": ["", "\0"],
    "system_prompt": [None, "", "x" * 60_000], "logit_bias": [[], [[0, -100.0]]], "grammar": ["", "not JSON"],
}  # fmt: skip
ALLOWED_SAMPLING: dict[str, list[Any]] = {
    "temperature": [0, 1e-320, 1e308], "top_k": [MAX_VOCAB], "min_p": [1.0], "max_new_tokens": [1],
    "top_p": [1e-9, 1.0], "presence_penalty": [-2.0, 2.0], "frequency_penalty": [0.5],
    "stop": [["x"] * 64],
}  # fmt: skip


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        (group, name, value)
        for group, allowed in (("", ALLOWED), ("sampling", ALLOWED_SAMPLING))
        for name, values in allowed.items()
        for value in values
    ],
    ids=lambda part: f"{part!r:.30}",
)
def test_what_is_at_a_bound_opens_at_every_actor(group: str, name: str, value: Any) -> None:
    text = asked(group, name, value)
    spec = SessionSpec.from_json(text)
    check_spec(spec, DevicesConfig().max_answer_tokens)
    cloud = CoordinatorTable(Party.CLOUD, lambda spec: lambda tokens: None)
    cloud.receive(frame(Open(spec=text), session=spec.session), 0.0)
    assert len(cloud.sessions) == 1
    for table in (
        DecodingTable("cloud"), AggregatingTable("cloud", RaceLists()), ProfilingTable("cloud"),
        SchedulingTable("cloud"),
    ):  # fmt: skip
        table.receive(Begin(session=spec.session, spec=text))
        assert len(table.sessions) == 1


def test_code_that_is_not_loaded_is_named_with_its_setting() -> None:
    with pytest.raises(ProtocolError, match="'os:getcwd' is not loaded here") as refused:
        check_spec(SessionSpec.from_json(asked("decoding", "placement", "os:getcwd")), 512)
    assert (refused.value.code, refused.value.option) == (Code.INVALID, "placement")


def test_an_option_that_there_is_not_is_refused_in_one_sentence() -> None:
    """Fuzzing found that it ended the device's connection."""
    asked = make_spec().to_json()
    assert '"max_new_tokens":' in asked
    check_spec(SessionSpec.from_json(asked), DevicesConfig().max_answer_tokens)
    with pytest.raises(ProtocolError) as refused:
        SessionSpec.from_json(asked.replace('"max_new_tokens":', '"max\\nnew_tokens":'))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400

"""A query is opened through the link: by the home, once, and with one sentence where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.config.schema import DevicesConfig
from tandem.errors import ProtocolError
from tandem.messages import Begin, Cancel, DecoderReady, End, Heartbeat, Open, Sources
from tandem.modes.query import MAX_TOP_LOGPROBS
from tandem.modes.spec import SessionSpec
from tandem.protocol.limits import check_spec
from tandem.protocol.outbox import Send
from tandem.protocol.session import StopCheck
from tandem.protocol.table import CoordinatorTable
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import events, frame, to

READY = DecoderReady(
    session=1, sources=("a", "b"), scores=(0.5, 0.25), retrieve_us=1_000_000, prefill_us=2, notes=("1 cut.",)
)


def never_complete(spec: SessionSpec) -> StopCheck:
    return lambda tokens: None


def table(party: Party = Party.DEVICE, obstacle: str | None = None) -> CoordinatorTable:
    return CoordinatorTable(party, never_complete, lambda: obstacle)


def begun(sends: list[Send]) -> list[str]:
    return [send.to for send in sends if isinstance(send.message, Begin)]


def test_the_home_opens_the_query_at_the_peer() -> None:
    device, cloud = table(), table(Party.CLOUD)
    (opening,) = to("peer", device.open(make_spec(), 0.0))
    sends = cloud.receive(opening, 0.1)
    assert begun(sends) == ["decoder", "aggregator", "profiler", "scheduler"]
    assert cloud.sessions[1].spec == make_spec()
    assert to("peer", sends), "the home learns that it is open"


def test_the_cloud_is_not_told_the_device_s_filter() -> None:
    spec = make_spec(device_filter='{"source": "diary.md"}', cloud_filter='{"year": 2024}')
    (opening,) = to("peer", table().open(spec, 0.0))
    assert "diary" not in opening.body.spec
    assert "2024" in opening.body.spec


def test_the_opening_is_repeated_until_the_peer_is_heard() -> None:
    device = table()
    device.open(make_spec(on_peer_loss="wait"), 0.0)
    seen = [
        now_s / 20
        for now_s in range(1, 200)
        for sent in to("peer", device.tick(now_s / 20))
        if isinstance(sent.body, Open)
    ]
    assert seen[:3] == pytest.approx([1.2, 2.4, 4.5], abs=0.11), "and as long as it takes at 10 kbit/s"
    device.receive(frame(Heartbeat()), 10.0)
    later = [sent.body for now_s in range(201, 400) for sent in to("peer", device.tick(now_s / 20))]
    assert not any(isinstance(body, Open) for body in later)


def test_a_repeated_opening_opens_nothing_again() -> None:
    cloud = table(Party.CLOUD)
    opening = frame(Open(spec=make_spec().to_json()))
    cloud.receive(opening, 0.0)
    first = cloud.sessions[1]
    assert begun(cloud.receive(opening, 0.1)) == []
    assert cloud.sessions[1] is first


def test_an_opening_that_comes_after_the_end_is_answered_with_the_end() -> None:
    device, cloud = table(), table(Party.CLOUD)
    (opening,) = to("peer", device.open(make_spec(), 0.0))
    cloud.receive(opening, 0.1)
    cloud.receive(frame(Cancel(reason="Enough.")), 0.2)
    assert not cloud.sessions
    (answer,) = to("peer", cloud.receive(opening, 0.3))
    assert isinstance(answer.body, Cancel)
    assert not cloud.sessions


def test_the_peer_s_obstacle_reaches_the_home() -> None:
    device, cloud = table(), table(Party.CLOUD, "The cloud already has 32 open queries; try again later.")
    (opening,) = to("peer", device.open(make_spec(on_peer_loss="fail"), 0.0))
    sends = cloud.receive(opening, 0.1)
    assert not cloud.sessions
    assert [type(send.message) for send in sends if send.to == "decoder"] == [Begin, End]
    for sent in to("peer", sends):
        last = device.receive(sent, 0.2)
    done = events(last)[-1]
    assert (done.reason, done.error) == (
        "failed",
        "The cloud gave the query up: The cloud already has 32 open queries; try again later.",
    )


@pytest.mark.parametrize(
    ("was", "spelled"),
    [
        ('"max_new_tokens":', '"max\\nnew_tokens":'),
        ('"placement":', '"mode":"duel","placement":'),
        ('"placement":', '"max_proposal":1000000000,"placement":'),
        ('"placement":', '"mode":"federated","placement":'),
    ],
)
def test_whatever_a_device_asks_for_is_refused_in_one_sentence(was: str, spelled: str) -> None:
    """An option or a mode that there is not. Fuzzing found that both ended the device's connection."""
    asked = make_spec().to_json()
    assert was in asked
    check_spec(SessionSpec.from_json(asked), DevicesConfig().max_answer_tokens)
    with pytest.raises(ProtocolError) as refused:
        check_spec(SessionSpec.from_json(asked.replace(was, spelled)), DevicesConfig().max_answer_tokens)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_a_device_gets_no_more_of_a_distribution_than_the_interface_gives() -> None:
    """A spec of its own making could ask the cloud for all of its vocabulary, in each verdict."""
    asked = make_spec(mode="speculative", num_logprobs=MAX_TOP_LOGPROBS)
    check_spec(SessionSpec.from_json(asked.to_json()), DevicesConfig().max_answer_tokens)
    greedy = replace(asked, num_logprobs=MAX_TOP_LOGPROBS + 1)
    with pytest.raises(
        ProtocolError, match="num_logprobs \\(Input should be less than or equal to 20, got 21\\)"
    ):
        check_spec(SessionSpec.from_json(greedy.to_json()), DevicesConfig().max_answer_tokens)


@pytest.mark.parametrize(
    ("session", "spec", "sentence"),
    [
        (
            1,
            "{",
            "The spec of a session is malformed at JSON (Invalid JSON: EOF while parsing an object at line 1 "
            "column 1); install the same version of tandem-rag everywhere.",
        ),
        (
            2,
            make_spec().to_json(),
            "The cloud cannot take part in session 00000002 as it was opened (session 00000001, home device); "
            "report this as a bug.",
        ),
        (
            1,
            make_spec(only=Party.CLOUD).to_json(),
            "The cloud cannot take part in session 00000001 as it was opened (session 00000001, home cloud); "
            "report this as a bug.",
        ),
    ],
)
def test_an_opening_that_makes_no_sense_is_refused_and_counted(
    session: int, spec: str, sentence: str
) -> None:
    cloud = table(Party.CLOUD)
    for _ in range(2):
        (answer,) = to("peer", cloud.receive(frame(Open(spec=spec), session=session), 0.0))
        assert answer.body == Cancel(reason=sentence)
    assert cloud.num_refused == 1
    assert not cloud.sessions
    cloud.receive(frame(Open(spec=make_spec(session=9).to_json()), session=9), 0.1)
    assert set(cloud.sessions) == {9}, "the site goes on"


# ---- documents -------------------------------------------------------------------------------------------------


def test_the_peer_s_documents_reach_the_client_at_home() -> None:
    device, cloud = table(), table(Party.CLOUD)
    (opening,) = to("peer", device.open(make_spec(), 0.0))
    for answer in to("peer", cloud.receive(opening, 0.0)):
        device.receive(answer, 0.0)
    (sent,) = to("peer", cloud.receive(READY, 0.1))
    assert sent.body == Sources(
        party=1, ids=("a", "b"), retrieve_us=1_000_000, prefill_us=2, notes=("1 cut.",)
    )
    (shown,) = events(device.receive(sent, 0.2))
    assert (shown.party, [source.id for source in shown.sources], shown.notes) == (
        "cloud",
        ["a", "b"],
        ("1 cut.",),
    )
    assert [source.score for source in shown.sources] == [None, None]
    assert shown.retrieve_s == 1.0
    assert to("peer", cloud.receive(READY, 0.3)) == [], "a decoder that is asked again has nothing new"


def test_documents_that_were_lost_on_the_way_are_sent_again() -> None:
    cloud = table(Party.CLOUD)
    cloud.receive(frame(Open(spec=make_spec().to_json())), 0.0)
    cloud.receive(READY, 0.1)  # lost
    again = [sent for sent in to("peer", cloud.tick(1.2)) if isinstance(sent.body, Sources)]
    assert len(again) == 1
    cloud.receive(replace(frame(Heartbeat()), received=(again[0].number,)), 0.8)
    later = [sent.body for now_s in range(20, 100) for sent in to("peer", cloud.tick(now_s / 20))]
    assert not any(isinstance(body, Sources) for body in later)


def test_the_device_s_own_documents_have_their_scores_and_stay_at_home() -> None:
    device = table()
    device.open(make_spec(), 0.0)
    sends = device.receive(READY, 0.1)
    (shown,) = events(sends)
    assert [source.score for source in shown.sources] == [0.5, 0.25]
    assert to("peer", sends) == []

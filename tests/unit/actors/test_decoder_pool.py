"""Which of several decoders has a session: the least busy one, always the same, until it is lost."""

from __future__ import annotations

import pytest

from tandem.actors.decoder_pool import MAX_ENDED, DecoderPool
from tandem.config.schema import PartyConfig
from tandem.messages import End, Local, ProposalLength, Window
from tandem.protocol.outbox import Send, kind_of
from tests.unit.protocol.talk import decided

FIRST, SECOND, THIRD = NAMES = tuple(f"cloud/{role}" for role in PartyConfig(num_decoders=3).decoder_roles)


def commit(session: int) -> Local:
    return decided(0, 1, session=session)


class Party:
    """Decoders, and the sessions that are open."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self.open: set[int] = set()
        self.decoders = DecoderPool(names, self.open.__contains__)

    def send(self, *sessions: int) -> list[str]:
        """Who gets a message of each of these open sessions."""
        self.open.update(sessions)
        return [name for session in sessions for name in self.decoders.receivers(commit(session))]


def test_the_first_decoder_is_called_as_an_only_one() -> None:
    assert NAMES == ("cloud/decoder", "cloud/decoder-1", "cloud/decoder-2")
    assert {kind_of(name.partition("/")[2]) for name in NAMES} == {"decoder"}
    assert kind_of("draft_queue") == "draft_queue"


def test_sessions_go_to_the_decoder_with_the_fewest_and_stay_there() -> None:
    party = Party()
    assert party.send(1, 2, 3, 4) == [FIRST, SECOND, THIRD, FIRST]
    assert party.send(4, 3, 2, 1) == [FIRST, THIRD, SECOND, FIRST]
    party.open -= {2}
    assert party.send(5, 6) == [SECOND, SECOND], "one that has ended does not count"


def test_sessions_of_a_lost_decoder_move_and_those_of_others_stay() -> None:
    party = Party()
    party.send(1, 2, 3, 4)
    party.open -= {4}
    assert party.decoders.lose(FIRST) == [1], "one that has ended need not move"
    assert party.decoders.available == (SECOND, THIRD)
    assert party.send(1, 2, 3, 5) == [SECOND, SECOND, THIRD, THIRD]
    party.decoders.find(FIRST)
    assert party.send(1, 6) == [SECOND, FIRST], "one that is back takes new sessions"


def test_the_end_goes_to_all_that_had_the_session() -> None:
    party = Party()
    party.send(1, 2)
    party.decoders.lose(FIRST)
    party.send(1)
    party.open.clear()
    assert party.decoders.receivers(End(session=1)) == (FIRST, THIRD)
    assert party.decoders.receivers(End(session=2)) == (SECOND,)
    assert party.decoders.receivers(End(session=3)) == (), "nobody has heard of it"
    assert party.decoders.find(FIRST) == [1], "it may hold it still"
    assert party.decoders.find(SECOND) == [2]


def test_without_any_decoder_nobody_gets_anything_until_one_is_back() -> None:
    party = Party((FIRST, SECOND))
    party.send(1)
    assert party.decoders.lose(FIRST) == [1]
    assert party.decoders.lose(SECOND) is None
    assert party.send(1) == []
    party.decoders.find(SECOND)
    assert party.send(1) == [SECOND]


def test_the_only_decoder_is_never_given_up() -> None:
    party = Party((FIRST,))
    assert party.send(1, 2) == [FIRST, FIRST]
    assert party.decoders.lose(FIRST) is None
    assert party.decoders.available == (FIRST,)
    assert party.send(1) == [FIRST]
    assert party.decoders.receivers(End(session=7)) == (FIRST,)


def test_orders_are_kept_for_the_decoder_that_comes_next() -> None:
    party = Party()
    party.send(1)
    wide, wider = (Window(session=1, size=size) for size in (5, 6))
    long = ProposalLength(session=1, length=3)
    for order in (wide, long, wider):
        assert party.decoders.note(order) == [Send("decoder", order)]
    assert party.decoders.orders(1) == [Send("decoder", wider), Send("decoder", long)]
    assert party.decoders.note(Window(session=2, size=5)) == [], "it is not open"
    assert party.decoders.orders(2) == []


@pytest.mark.parametrize("is_kept", [True, False])
def test_only_so_many_ended_sessions_are_remembered(is_kept: bool) -> None:
    party = Party()
    party.send(0)
    party.open -= set() if is_kept else {0}
    for session in range(1, MAX_ENDED + 1):
        party.send(session)
        party.open.discard(session)
    party.send(MAX_ENDED + 1)
    assert bool(party.decoders.receivers(End(session=0))) is is_kept, "an open one is never forgotten"
    assert party.decoders.receivers(End(session=MAX_ENDED))

"""What a peer can make a party remember is bounded, and what it claims of a prefix concerns its own entries alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import pytest

from tandem.errors import ProtocolError
from tandem.messages import Logprobs, Rejoin, Sources, Tail, decode_link, encode
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol import ballots
from tandem.protocol.ballots import MAX_ENTRIES, BallotBox
from tandem.protocol.log import MAX_PREFIXES, Branches, Prefix, extend_digest
from tandem.protocol.peer import MAX_RECEIPTS, Deliveries
from tandem.protocol.report import MAX_SOURCES
from tandem.protocol.table import CoordinatorTable
from tandem.topology import Party
from tandem_lab.simulation.hostile import count_items
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import frame, vote
from tests.unit.protocol.test_rights import SPECS, TRIES, Try, opened

DRAFT = vote(payloads=(b"x",), log_weights=(0.0,), decode_us=1)


def test_branches_remember_so_many_prefixes() -> None:
    """Children of one prefix, and of dead ones; a commit makes room again."""
    for is_dead in (False, True):
        branches, prefix = Branches(), Prefix(1)
        parent = b"elsewhere" if is_dead else prefix.digest
        if is_dead:
            branches.kill(parent, 0)
        for token in range(2 * MAX_PREFIXES):
            branches.add(parent, 0, token)
        assert len(branches) == MAX_PREFIXES
        for token in range(3):
            prefix.append(token)
            branches.commit(prefix)
        assert len(branches) == 0


def test_receipts_that_wait_are_bounded() -> None:
    receipts = Deliveries()
    for number in range(1, 2 * MAX_RECEIPTS):
        receipts.receive(number, 0.0)
    assert len(receipts.take_received()) == MAX_RECEIPTS
    receipts.receive(1, 0.0)
    assert receipts.take_received() == (1,)


def test_proposals_from_the_next_step_on_are_bounded_too() -> None:
    """The first token of each is for the next step, which always has room; those behind it have not."""
    box, prefix = BallotBox(1, make_spec(mode="speculative").rules, Party.CLOUD), Prefix(1)
    kept = [box.hold(Party.DEVICE, vote((), (0, token, *range(14))), prefix, 0.0) for token in range(200)]
    assert len(box.entries[Party.DEVICE]) <= MAX_ENTRIES + MAX_PROPOSAL
    assert kept[0]
    assert not kept[-1], "it comes again"


def test_payloads_of_a_peer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballots, "MAX_ENTRY_BYTES", 1000)
    box, prefix = BallotBox(1, make_spec().rules, Party.DEVICE), Prefix(1)
    for step in range(1, 20):
        late = replace(DRAFT, step=step, digest=bytes([step] * 8), payloads=(bytes(300),))
        assert box.hold(Party.CLOUD, late, prefix, 0.0) is (step <= 4)
    assert box.hold(Party.CLOUD, replace(DRAFT, payloads=(bytes(300),)), prefix, 0.0), "the next step's"


def test_a_peer_cannot_void_own_proposals_by_a_false_length() -> None:
    """It says of the prefix after two own drafts that it has no token, and so differs from the committed one."""
    box, prefix = BallotBox(1, make_spec().rules, Party.DEVICE), Prefix(1)
    digest = prefix.digest
    for step in range(3):
        own = replace(DRAFT, step=step, digest=digest, tokens=(5,))
        box.hold(Party.DEVICE, own, prefix, 0.0)
        box.hold(Party.CLOUD, replace(DRAFT, digest=extend_digest(digest, 5)), prefix, 0.0)
        digest = extend_digest(digest, 5)
    prefix.append(5)
    box.advance(prefix)
    assert len(box.own) == 2
    again = replace(DRAFT, step=3, digest=digest, tokens=(5,))
    box.hold(Party.DEVICE, again, prefix, 0.0)
    assert len(box.own) == 3


def test_a_peer_that_restarts_all_the_time_is_answered_each_time_and_remembered_for_a_while() -> None:
    table = CoordinatorTable(Party.DEVICE, lambda spec: lambda tokens: None)
    table.open(make_spec(placement="mirror"), 0.0)
    session = table.sessions[1]
    num_items: list[int] = []
    for incarnation in range(300):
        num_items.append(count_items(session.peers))
        table.receive(frame(Rejoin(incarnation=incarnation), number=1), 0.1)
        table.receive(frame(Rejoin(incarnation=incarnation), number=1), 0.1)
    assert session.log.view == 300
    assert num_items[299] == num_items[200]


def test_sources_that_a_peer_names_again_and_again_are_passed_on_for_a_while() -> None:
    """A server keeps what it hands on until the home has it; a client's events have no other bound."""
    spec = make_spec(mode="federated", workers=("ada", "ben"), home="ada")
    server = CoordinatorTable("server", lambda spec: lambda tokens: None)
    server.open(spec, 0.0)
    for number in range(3 * MAX_SOURCES):
        sources = Sources(party=2, ids=(f"{number:x}",), retrieve_us=1, prefill_us=1, notes=())
        server.receive(frame(sources, number=number + 1), 0.1, "ben")
    assert len(server.sessions[1].peers["ada"].deliveries) == MAX_SOURCES
    assert server.num_refused_frames == 0


# ---- every field of every body ---------------------------------------------------------------------------------

HUGE, MANY, LONG = (1 << 64) - 1, 100_000, 1 << 20
MAX_KEPT = 24_000
"""Things that a party may hold of a query after any one frame, as `count_items` counts them: bytes by 64."""
KNOWN = Logprobs(logprob=-1.0, top_ids=(), top_logprobs=())
EXTREMES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 63, 1 << 31, HUGE),
    str: ("", "x" * LONG, "\n\N{RIGHT-TO-LEFT OVERRIDE}"),
    bytes: (bytes(LONG),),
}
ITEMS: dict[str, tuple[Any, ...]] = {
    "payloads": (b"", bytes(LONG)), "log_weights": (nan, inf, -inf, 3e38),
    "ids": ("", "x" * LONG), "notes": ("", "x" * LONG),
    "tail": (Tail(), Tail(logprobs=(KNOWN,) * 300, lost=(63,) * 300)),
}  # fmt: skip
"""Of sequences whose items are no whole numbers."""


def is_long(item: Any) -> bool:
    """Whether many of it fit no frame."""
    return isinstance(item, Tail) or (isinstance(item, str | bytes) and len(item) > 8)


def extremes(body: Any) -> Iterator[Any]:
    """The same body with one field as large, small, long or strange as a frame holds it."""
    for field in fields(body):
        before = getattr(body, field.name)
        if field.name in ("digest", "incarnation"):
            continue  # of a fixed size: any value is as good as another
        if isinstance(before, tuple):
            items = ITEMS.get(field.name, (0, HUGE))
            counts = {item: (1, 3) if is_long(item) else (1, 3, MANY) for item in items}
            values = [(), *((item,) * count for item in items for count in counts[item])]
        else:
            least = {"party": 64, "decider": 64, "next_decider": 64}.get(field.name, HUGE + 1)
            values = [
                value
                for value in EXTREMES.get(type(before), ())
                if not isinstance(value, int) or value < least
            ]
            assert values or field.name == "fault", f"{type(body).__name__}.{field.name} is not tried"
        yield from (replace(body, **{field.name: value}) for value in values)


def is_like_another(each: Try) -> bool:
    """A worker is like the one before it, unless that one is the home."""
    alike = {"cy"} if SPECS[each.name].home == "ada" else {"ben", "cy"}
    return not alike.isdisjoint((each.source, each.party))


@pytest.mark.parametrize("name", SPECS)
def test_no_field_of_a_frame_makes_a_party_hold_much_or_fail(name: str) -> None:
    """Below, above and of another length than anything honest, at whoever takes such a body in."""
    num_tried = num_refused = 0
    legal = (each for each in TRIES if each.name == name and each.is_legal)
    for each in (each for each in legal if not is_like_another(each)):
        for body in extremes(each.body):
            table = opened(SPECS[name], each.party)
            try:
                data = encode(frame(body, number=5))
            except ProtocolError:
                continue  # no frame holds it
            num_tried += 1
            num_refused += receive(table, each, data)
    assert num_tried > 100 or name.startswith("solo")
    assert num_refused > num_tried / 10 or name.startswith("solo")


def receive(table: CoordinatorTable, each: Try, data: bytes) -> int:
    """Whether the frame was refused; whatever it was, little is held."""
    try:
        sends = table.receive(decode_link(data), 0.2, each.source)
    except ProtocolError:
        return 1
    held = count_items(list(table.sessions.values()))
    assert held < MAX_KEPT, each
    assert sum(count_items(send.message) for send in sends) < MAX_KEPT, each
    return table.num_refused_frames

"""Two released versions speak with each other: what the last one wrote is read, and what a newer one adds is not lost.

`version-17.json` is what version 17 wrote. A later version adds a file with its new bodies, and changes none.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem import messages
from tandem.conversation import Message
from tandem.errors import ClusterError, ProtocolError
from tandem.joining import handshakes
from tandem.joining.handshakes import read_about
from tandem.joining.join_link import JoinLink
from tandem.messages import LinkFrame, decode_link, encode
from tandem.modes import SessionSpec
from tandem.sites.startup import compare
from tests.unit.messages.test_messages import frame_of

LAST = 17
"""The last version that was recorded."""
RECORDED = json.loads(Path(__file__).with_name(f"version-{LAST}.json").read_text("utf-8"))
SPEC = SessionSpec.from_json(RECORDED["spec"])
LINK = JoinLink(host="cloud.lan", port=7800, secret=bytes(16), fingerprint=bytes(32))


def frames() -> dict[str, LinkFrame]:
    """One of each body."""
    return {
        type(frame.body).__name__: frame for frame in map(decode_link, map(bytes.fromhex, RECORDED["frames"]))
    }


def test_every_frame_of_the_last_version_is_read_and_written_alike() -> None:
    written = {body.__name__ for body in messages.registry.body_classes if body.since <= LAST}
    assert frames().keys() == written
    assert [encode(frame).hex() for frame in frames().values()] == RECORDED["frames"]


def test_its_queries_and_descriptions_are_read() -> None:
    assert (SPEC.query, SPEC.history, SPEC.grammar) == ("q", (Message("user", "Why?"),), '{"type": "object"}')
    assert SPEC.to_json() == RECORDED["spec"]
    assert read_about(RECORDED["about"]).protocol_version == LAST


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This party is a version later, and still speaks the last one."""
    monkeypatch.setattr(messages, "PROTOCOL_VERSION", LAST + 1)
    monkeypatch.setattr(messages, "OLDEST_VERSION", LAST)


@pytest.mark.usefixtures("newer")
def test_a_newer_party_reads_them_too() -> None:
    assert len(frames()) == len(RECORDED["frames"])
    with pytest.raises(
        ProtocolError,
        match=f"version {LAST + 2} was received, but this party speaks versions {LAST} to {LAST + 1}",
    ):
        decode_link(encode(replace(frame_of(messages.Heartbeat()), version=LAST + 2)))


def with_fields(**fields: Any) -> str:
    """The query as a newer version may write it."""
    return json.dumps(json.loads(SPEC.to_json()) | fields)


def test_a_newer_field_that_changes_no_token_is_ignored() -> None:
    decoding = json.loads(SPEC.to_json())["e"]
    assert SessionSpec.from_json(with_fields(_colour="red", e=decoding | {"_pace": 3})) == SPEC


@pytest.mark.parametrize(
    "field", [{"zz": 3}, {"u": [{"role": "user", "content": "Why?", "zz": 1}]}, {"zz": 1, "_colour": "red"}]
)
def test_a_newer_field_that_may_change_one_is_refused_by_its_name(field: dict[str, Any]) -> None:
    with pytest.raises(
        ProtocolError, match=r"an option that this version does not know .*\(.*zz\); install the newer"
    ):
        SessionSpec.from_json(with_fields(**field))


@pytest.mark.parametrize(
    ("oldest", "newest", "is_welcome"),
    [(17, 17, True), (17, 19, True), (12, 17, True), (18, 19, False), (3, 16, False)],
)
def test_versions_meet_where_their_ranges_do(oldest: int, newest: int, is_welcome: bool) -> None:
    """Of a party that speaks version 17 alone."""
    assert messages.have_common((17, 17), (oldest, newest)) is is_welcome
    own = {"protocol_version": 17, "oldest_version": 17}
    other = {"protocol_version": newest, "oldest_version": oldest}
    described = {"device": own, "cloud": other}
    if is_welcome:
        compare(described)
    else:
        with pytest.raises(ClusterError, match="must have the same protocol version"):
            compare(described)


def test_the_hello_says_both_ends_of_the_range() -> None:
    hello = json.loads(handshakes.hello_of(LINK))
    assert (hello["oldest"], hello["protocol"]) == (messages.OLDEST_VERSION, messages.PROTOCOL_VERSION)
    assert hello["secret"] == b64encode(bytes(16)).decode()

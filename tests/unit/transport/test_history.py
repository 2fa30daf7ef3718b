"""What dialling one actor so far means for the next attempt."""

from __future__ import annotations

import pytest

from tandem.errors import ProtocolError
from tandem.transport.handshake import Refused
from tandem.transport.sockets import BRIEF_S, MAX_REFUSALS, MAX_RETRY_S, DialHistory


def make_history() -> DialHistory:
    return DialHistory("device/draft_queue", "cloud/draft_queue")


def test_connections_that_live_briefly_count_as_failed_after_the_first() -> None:
    history, failed = make_history(), []
    for now_s in range(4):
        history.opened(now_s)
        history.lost(now_s + 0.5)
        failed.append(history.begin())
    assert failed == [0, 1, 2, 3]
    history.opened(10.0)
    history.lost(10.0 + BRIEF_S)
    assert history.begin() == 0
    assert BRIEF_S > MAX_RETRY_S, "ends that replace each other after MAX_RETRY_S would start over"


def test_an_actor_that_was_never_reached_is_given_up_after_refusals_for_good_only() -> None:
    history = make_history()
    history.begin()
    for _ in range(10):
        history.refused(Refused("busy", 5.0))
    for _ in range(MAX_REFUSALS - 1):
        history.refused(Refused("revoked"))
    with pytest.raises(ProtocolError, match="another key"):
        history.refused(ProtocolError("another key"))
    history.opened(0.0)
    history.begin()
    for _ in range(10):
        history.refused(Refused("revoked"))


def test_the_latest_refusal_is_kept_until_there_is_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    history = make_history()
    history.refused(Refused("busy", 5.0))
    history.refused(Refused("revoked"))
    assert str(history.refusal) == "revoked"
    assert caplog.messages == ["device/draft_queue cannot connect to cloud/draft_queue: busy"]
    history.opened(1.0)
    assert history.refusal is None

"""How many frames a link takes before they queue, found from round trips alone."""

from __future__ import annotations

from math import nan

from tandem.protocol.send_window import FIRST_FRAMES, QUEUE_S, QUEUED_FRAMES, LinkRoom, SendWindow

RTT_S = 0.3


def filled(window: SendWindow) -> int:
    """Frames that go out until it is full; by their numbers as stamps."""
    stamp = 0
    while not window.is_full:
        stamp += 1
        window.send(stamp)
    return stamp


def test_an_unknown_link_takes_a_few_frames() -> None:
    assert filled(SendWindow()) == FIRST_FRAMES


def test_an_echo_makes_room_for_all_frames_up_to_its_own() -> None:
    window = SendWindow()
    filled(window)
    window.receive(5, nan)
    window.receive(3, nan)  # overtaken
    assert window.num_on_way == FIRST_FRAMES - 5
    assert not window.is_full


def test_room_grows_where_many_frames_caused_no_queue_and_not_where_one_did() -> None:
    room = LinkRoom()
    room.observe(1, RTT_S)
    assert room.num_frames == FIRST_FRAMES, "one frame says nothing of eight"
    room.observe(FIRST_FRAMES, RTT_S + 0.5 * QUEUE_S)
    assert room.num_frames == 2 * FIRST_FRAMES
    room.observe(3, RTT_S)
    assert room.num_frames == 2 * FIRST_FRAMES


def test_a_queue_leaves_room_for_few_frames_until_it_is_gone() -> None:
    room = LinkRoom()
    room.observe(1, RTT_S)
    room.observe(100, RTT_S)
    room.observe(100, RTT_S + 2 * QUEUE_S)
    assert room.num_frames == QUEUED_FRAMES
    room.observe(QUEUED_FRAMES, RTT_S)
    assert room.num_frames == 2 * QUEUED_FRAMES


def test_a_longer_route_is_no_queue_for_ever() -> None:
    room = LinkRoom()
    room.observe(1, 0.02)
    limits = []
    for _ in range(200):
        room.observe(20, RTT_S)
        limits.append(room.num_frames)
    assert limits[0] == QUEUED_FRAMES
    assert limits[-1] >= 40

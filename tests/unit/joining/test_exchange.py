"""A device and a cloud of different vocabularies exchange these in the handshake, once; neither trusts the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tandem.errors import ProtocolError
from tandem.joining.handshakes import (
    CLOUD_QUEUE,
    MAX_HELLO_BYTES,
    MAX_WELCOME_BYTES,
    VOCABULARY_BYTES,
    CloudHandshake,
    DeviceHandshake,
    Exchange,
    RetryLater,
    digest_of,
    queue_of,
)
from tandem.joining.join_link import Device, JoinLink
from tandem.sites.host import find_vocabulary, keep_vocabulary
from tandem.transport.port import Refusal, Refused

LINK = JoinLink("127.0.0.1", 1, b"f" * 32, b"s" * 16)
DEVICE = Device(name="phone", digest="d", added="")
OWN, CLOUDS = bytes(range(256)) * 20, bytes(reversed(range(256))) * 300


class Cloud:
    """Decides who may join, and lists pieces at once when told to."""

    def __init__(self, vocabulary: bytes = CLOUDS) -> None:
        self.vocabulary = vocabulary
        self.about = {"vocabulary_fingerprint": "cloud's"}
        if vocabulary:
            self.about["pieces_digest"] = digest_of(vocabulary)
        self.listed: dict[str, bool] = {}

    def has_listed(self, device: Device, digest: str) -> bool | None:
        return self.listed.get(digest)

    def learn(self, vocabulary: bytes) -> None:
        self.listed[digest_of(vocabulary)] = False

    def recognise(self, secret: bytes) -> Device | None:
        return DEVICE

    def admit(self, device: Device, instance: str) -> RetryLater | None:
        return None

    def note_refusal(self, error: ProtocolError) -> None:
        pass


class Phone:
    def __init__(self, vocabulary: str = "phone's", fits: bool = False) -> None:
        self.vocabulary, self.fits = vocabulary, fits
        self.learned: bytes | None = None

    def meet(self, about: dict[str, Any]) -> Exchange | None:
        if self.fits or not about.get("pieces_digest"):
            return None
        return Exchange(OWN, "" if self.learned else about["pieces_digest"], self._learn)

    def _learn(self, vocabulary: bytes) -> None:
        self.learned = vocabulary
        raise Refused("come back", 1.0)

    def handshake(self) -> DeviceHandshake:
        return DeviceHandshake(LINK, "1", self.meet, self.vocabulary)


def talk(phone: Phone, cloud: Cloud) -> tuple[str | None, str | None, int]:
    """The names that device and cloud know each other by in the end, and the bytes that crossed. Raises Refused."""
    device, host = phone.handshake(), CloudHandshake(cloud)
    names: list[str | None] = [None, None]
    up, down = [json_hello(phone)], list[bytes]()
    num_bytes = 0
    while up or down:
        sends = (up, down) if up else (down, up)
        frame = sends[0].pop(0)
        num_bytes += len(frame)
        assert len(frame) <= (MAX_HELLO_BYTES if sends[0] is up else MAX_WELCOME_BYTES)
        try:
            frames, name = (host if sends[0] is up else device).receive(frame)
        except Refusal as refusal:
            frames, name, up = [refusal.frame], None, []
        sends[1].extend(frames)
        names[sends[0] is up] = name or names[sends[0] is up]
    return names[0], names[1], num_bytes


def json_hello(phone: Phone) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.joining.handshakes.check_certificate", lambda *_: None)
        return phone.handshake().begin(b"")[0]


NAMES = CLOUD_QUEUE, queue_of("phone")


@pytest.mark.parametrize(
    ("phone", "cloud"),
    [
        (Phone("cloud's"), Cloud()),
        (Phone("phone's", fits=True), Cloud()),
        (Phone("phone's"), Cloud(b"")),
        (Phone("", fits=True), Cloud()),
    ],
    ids=["the same", "the same tokens that count", "a cloud that has none", "an older device"],
)
def test_nothing_is_sent_where_vocabularies_fit(phone: Phone, cloud: Cloud) -> None:
    *names, num_bytes = talk(phone, cloud)
    assert tuple(names) == NAMES
    assert num_bytes < 600


def test_each_vocabulary_crosses_once() -> None:
    phone, cloud = Phone(), Cloud()
    with pytest.raises(Refused):
        talk(phone, cloud)  # the device has the cloud's now
    assert phone.learned == CLOUDS
    with pytest.raises(Refused, match="is busy; retry after 1 s"):
        talk(phone, cloud)  # and the cloud the device's
    assert cloud.listed == {digest_of(OWN): False}
    with pytest.raises(Refused, match="is busy; retry after 1 s"):
        talk(phone, cloud)  # until it has listed the pieces
    cloud.listed[digest_of(OWN)] = True
    *names, num_bytes = talk(phone, cloud)
    assert tuple(names) == NAMES
    assert num_bytes < 1000


def choice(**fields: Any) -> bytes:
    return json.dumps({"tandem": 1, **fields}).encode()


HOSTILE: dict[str, list[bytes]] = {
    "nothing": [b""],
    "no number": [choice(pieces="0" * 32, size="9")],
    "too much": [choice(pieces="0" * 32, size=VOCABULARY_BYTES + 1)],
    "less than nothing": [choice(pieces="0" * 32, size=-1)],
    "a path": [choice(pieces="../../keys", size=4), b"abcd"],
    "another one": [choice(pieces=digest_of(b"abcd"), size=4), b"abce"],
    "a number": [choice(pieces=7, size=4), b"abcd"],
}


@pytest.mark.parametrize("frames", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_device_is_refused(frames: list[bytes]) -> None:
    cloud = Cloud()
    handshake = CloudHandshake(cloud)
    assert handshake.receive(json_hello(Phone()))[1] is None
    with pytest.raises(ProtocolError):
        list(map(handshake.receive, frames))
    assert not cloud.listed


def test_a_hostile_cloud_is_refused() -> None:
    lies: list[Callable[[DeviceHandshake], object]] = [
        lambda device: device.receive(choice(size=-1)),
        lambda device: device.receive(choice(size=1 << 40)),
        lambda device: (device.receive(choice(size=4)), device.receive(b"abcd")),
    ]
    welcome = choice(about=Cloud().about)
    for lie in lies:
        device = Phone().handshake()
        device.receive(welcome)
        with pytest.raises(ProtocolError) as caught:
            lie(device)
        assert not isinstance(caught.value, Refused)


def test_vocabularies_are_kept_and_none_else_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.sites.host.KEPT_VOCABULARIES", 2)
    (tmp_path / "secret").write_bytes(b"x")
    for number in range(4):
        keep_vocabulary(tmp_path / "kept", bytes([number]))
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert find_vocabulary(tmp_path / "kept", digest_of(bytes([3]))) == bytes([3])
    assert find_vocabulary(tmp_path / "kept", "../secret") is None
    (tmp_path / "kept" / digest_of(bytes([3]))).write_bytes(b"damaged")
    assert find_vocabulary(tmp_path / "kept", digest_of(bytes([3]))) is None

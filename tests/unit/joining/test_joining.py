"""A device joins a cloud on loopback: TLS with the pinned key, token, frames; and everybody else stays outside."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.errors import ProtocolError
from tandem.joining import handshakes
from tandem.joining.handshakes import CLOUD_QUEUE, MAX_HELLO_BYTES, queue_of
from tandem.joining.join_link import JoinLink, client_context, load_identity
from tandem.transport.port import join_frames
from tests.unit.joining.conftest import ABOUT, Cloud, Phone
from tests.unit.transport.conftest import until


def send(end: Cloud | Phone, to: str, *frames: bytes) -> None:
    for frame in frames:
        end.plane.send(to, frame)
    end.plane.flush()


async def test_frames_go_both_ways_and_the_cloud_knows_whose_they_are(cloud: Cloud) -> None:
    await cloud.start()
    phone, laptop = Phone(cloud.link_for("phone")), Phone(cloud.link_for("laptop"))
    await phone.join()
    await laptop.join()
    assert phone.welcomes == [ABOUT]
    send(phone, CLOUD_QUEUE, b"from the phone")
    send(laptop, CLOUD_QUEUE, b"from the laptop")
    await until(lambda: len(cloud.frames) == 2)
    assert set(cloud.frames) == {
        (queue_of("phone"), b"from the phone"),
        (queue_of("laptop"), b"from the laptop"),
    }
    send(cloud, queue_of("laptop"), b"to the laptop")
    await until(lambda: laptop.frames)
    assert (phone.frames, laptop.frames) == ([], [b"to the laptop"])
    connection = phone.plane.connection_to(CLOUD_QUEUE)
    assert connection is not None
    assert connection.transport is not None
    assert connection.transport.get_extra_info("ssl_object").version() == "TLSv1.3"


async def refusal(link: JoinLink) -> str:
    """What a device with this link is told."""
    phone = Phone(link)
    joining = asyncio.create_task(phone.join())
    await until(lambda: phone.plane.refusal_of(CLOUD_QUEUE))
    said = phone.plane.refusal_of(CLOUD_QUEUE)
    await phone.plane.close()
    await asyncio.gather(joining, return_exceptions=True)
    assert said is not None
    return said


async def test_who_is_not_welcome_is_told_why(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    """No log holds the token."""
    caplog.set_level(logging.DEBUG)
    await cloud.start()
    link = cloud.link_for("phone")
    stranger = replace(link, secret=bytes(16))
    assert "does not know the token" in await refusal(stranger)
    cloud.retry_after_s = 7.0
    assert "busy; retry after 7 s" in await refusal(link)
    cloud.retry_after_s = None
    cloud.devices.revoke("phone")
    assert "has revoked this join link" in await refusal(link)
    phone = Phone(link)
    with pytest.raises(ProtocolError, match="has revoked this join link"):  # after a few attempts
        await asyncio.wait_for(phone.join(), 60)
    await phone.plane.close()
    cloud.devices.add("phone")
    assert "does not know the token" in await refusal(link), "an old token of a new device"
    assert not any(secret in caplog.text for secret in (str(link).rpartition(".")[2], link.secret.hex()))


async def test_a_device_comes_back_to_a_busy_cloud_when_it_was_told_to(cloud: Cloud) -> None:
    """It does not give up, as it does after three other refusals."""
    await cloud.start()
    phone = Phone(cloud.link_for("phone"))
    cloud.retry_after_s = 0.1
    joining = asyncio.create_task(phone.join())
    await asyncio.sleep(0.8)
    assert not joining.done()
    assert 3 < cloud.plane.num_turned_away <= 8
    cloud.retry_after_s = None
    await asyncio.wait_for(joining, 60)
    assert phone.plane.refusal_of(CLOUD_QUEUE) is None


async def test_another_version_is_told_both(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    await cloud.start()
    link = cloud.link_for("phone")
    hello = {"tandem": 1, "protocol": 3, "secret": b64encode(link.secret).decode()}
    with monkeypatch.context() as patch:
        patch.setattr(
            handshakes.DeviceHandshake, "begin", lambda self, certificate: [json.dumps(hello).encode()]
        )
        said = await refusal(link)
    assert f"it has {handshakes.PROTOCOL_VERSION}, this device" in said


async def test_another_cloud_does_not_get_to_see_the_token(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that holds the right name and address: the key alone counts."""
    other = Cloud(load_identity(tmp_path / "other"), tmp_path / "other")
    await other.start()
    heard: list[bytes] = []
    monkeypatch.setattr(other.devices, "recognise", heard.append)
    assert "is not the cloud of this join link" in await refusal(
        replace(cloud.link_for("phone"), port=other.port)
    )
    assert not heard


async def test_a_device_whose_address_changed_replaces_its_own_connection(cloud: Cloud) -> None:
    """It dials again while the cloud still holds the old connection, which nobody has closed."""
    await cloud.start()
    link = cloud.link_for("phone")
    before, after = Phone(link, "one process"), Phone(link, "one process")
    await before.join()
    await after.join()
    await until(lambda: cloud.plane.num_connections == 1)
    send(cloud, queue_of("phone"), b"here")
    await until(lambda: after.frames)
    assert before.frames == []


async def test_a_link_serves_one_process_at_a_time(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, and neither disturbs the first nor gives up; it gets in once the first has gone."""
    monkeypatch.setattr(handshakes, "IN_USE_S", 0.1)
    await cloud.start()
    link = cloud.link_for("phone")
    first, second = Phone(link), Phone(link)
    await first.join()
    joining = asyncio.create_task(second.join())
    await asyncio.sleep(0.8)
    assert "is in use by another process; stop that one, or" in (second.plane.refusal_of(CLOUD_QUEUE) or "")
    assert cloud.plane.counters[queue_of("phone")].connections == 1
    send(cloud, queue_of("phone"), b"to the first")
    await until(lambda: first.frames)
    await first.plane.close()
    await asyncio.wait_for(joining, 60)
    send(cloud, queue_of("phone"), b"to the second")
    await until(lambda: second.frames)


HOSTILE = [
    b"",
    b"{}",
    b"null",
    b"[" * 500,
    b"garbage",
    b'{"tandem":1}',
    b'{"tandem":1,"protocol":6,"secret":3}',
    b'{"tandem":1,"protocol":6,"secret":"!!"}',
    b'{"tandem":1,"protocol":6,"secret":null}',
    b'{"tandem":1,"protocol":6,"secret":"' + b"A" * 900 + b'"}',
    json.dumps({"tandem": 1, "protocol": 6, "secret": "\udcff"}).encode(),
]


@pytest.mark.parametrize("hello", HOSTILE)
async def test_a_hostile_hello_is_refused_and_the_cloud_goes_on(cloud: Cloud, hello: bytes) -> None:
    await cloud.start()
    cloud.devices.add("other")
    _, writer = await asyncio.open_connection("127.0.0.1", cloud.port, ssl=client_context())
    writer.write(join_frames([hello, b"a frame"]))
    await until(lambda: cloud.plane.num_connections == 0)
    assert cloud.frames == []
    writer.close()
    phone = Phone(cloud.link_for("phone"))
    await phone.join()


async def test_who_connects_cannot_make_the_cloud_wait_or_grow(cloud: Cloud) -> None:
    await cloud.start()
    _, silent = await asyncio.open_connection("127.0.0.1", cloud.port, ssl=client_context())
    _, long = await asyncio.open_connection("127.0.0.1", cloud.port, ssl=client_context())
    long.write(join_frames([bytes(MAX_HELLO_BYTES + 1)])[:10])
    await until(lambda: cloud.plane.num_connections <= 1)
    await until(lambda: cloud.plane.num_connections == 0)
    _, plain = await asyncio.open_connection("127.0.0.1", cloud.port)  # no TLS at all
    plain.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.05)
    assert cloud.plane.num_connections == 0
    for writer in (silent, long, plain):
        writer.close()


async def test_an_older_tls_is_not_spoken(cloud: Cloud) -> None:
    await cloud.start()
    context = client_context()
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", cloud.port, ssl=context)


ANSWERS: list[tuple[bytes, str]] = [
    (b"garbage", "does not speak Tandem"),
    (b'{"tandem":1}', "neither yes nor no"),
    (b'{"tandem":1,"about":3}', "neither yes nor no"),
    (b'{"tandem":1,"refused":"\\u001b[31m' + b"x" * 400 + b'"}', "does not know"),
    (b'{"tandem":1,"refused":"busy","value":1e300}', "retry after 3600 s"),
    (b'{"tandem":1,"refused":"busy","value":true}', "retry after 0 s"),
    (b'{"tandem":1,"refused":"busy","value":1' + b"0" * 400 + b"}", "retry after 0 s"),
    (b'{"tandem":1,"refused":"busy","value":NaN}', "retry after 0 s"),
    (b'{"tandem":1,"refused":"version","value":"\\u001b[31m"}', "it has 0"),
]


@pytest.mark.parametrize(("answer", "sentence"), ANSWERS)
async def test_a_hostile_cloud_cannot_choose_what_the_user_reads(
    cloud: Cloud, answer: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cloud.start()
    link = cloud.link_for("phone")
    monkeypatch.setattr(handshakes.CloudHandshake, "receive", lambda self, frame: ([answer], None))
    said = await refusal(link)
    assert sentence in said
    assert said.isprintable()
    assert len(said) < 300

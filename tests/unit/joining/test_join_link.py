"""A join link survives a copy, and a damaged one is told apart from a revoked one, without quoting its token."""

from __future__ import annotations

import datetime as dt
import json
import os
import ssl
import stat
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import ConfigError, ProtocolError
from tandem.joining.join_link import (
    CERTIFICATE_FILE,
    FILE,
    KEY_FILE,
    VALID,
    DeviceList,
    Identity,
    JoinLink,
    check_certificate,
    load_identity,
    read_link,
)

LINK = JoinLink("cloud.example", 7800, bytes(range(32)), b"sixteen secrets!")
TEXT = str(LINK)
TOKEN = TEXT.partition(".example")[2].partition(".")[2]
HOSTS = st.sampled_from(["cloud.example", "127.0.0.1", "::1", "localhost", "2001:db8::7"])


@given(HOSTS, st.integers(1, 65535), st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_every_link_is_read_as_it_was_written(
    host: str, port: int, fingerprint: bytes, secret: bytes
) -> None:
    link = JoinLink(host, port, fingerprint, secret)
    assert JoinLink.parse(str(link)) == link
    assert JoinLink.parse(f"  {link}\n") == link


@pytest.mark.parametrize(
    "around", ["{}\r\n", "\ufeff{}\n", "<{}>", '"{}"', "\u201c{}\u201d", "\u200b{}", "{}."]
)
def test_a_link_is_read_as_it_arrives(around: str, tmp_path: Path) -> None:
    """From mail, a chat or an editor, as an argument and in a file."""
    link = JoinLink("cloud.example", 7800, bytes(range(32)), bytes(range(16)))
    assert read_link(around.format(link)) == link
    file = tmp_path / "link.txt"
    file.write_text(around.format(link), "utf-8")
    file.chmod(0o600)
    assert read_link(str(file)) == link


def test_the_secret_is_in_the_link_alone() -> None:
    assert TOKEN in TEXT
    assert "secret" not in repr(LINK)
    assert TOKEN not in repr(LINK)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from(string.ascii_letters + string.digits + "-_"))
def test_a_mistyped_character_is_noticed(position: int, character: str) -> None:
    """Two bytes of check: one in 65,536 would pass, none of these 1,536."""
    if TOKEN[position] == character:
        return
    mistyped = TEXT[: -len(TOKEN)] + TOKEN[:position] + character + TOKEN[position + 1 :]
    with pytest.raises(ConfigError, match=r"mistyped|damaged"):
        JoinLink.parse(mistyped)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "looks like"),
        ("cloud.example:7800", "looks like"),
        ("https://cloud.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example/#a.b", "looks like"),
        ("tandem://cloud.example:no/#a.b", "looks like"),
        ("tandem://:7800/#a.b", "looks like"),
        ("tandem://cloud.example:70000/#a.b", "looks like"),
        ("tandem://me@cloud.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example:7800/x/#a.b", "looks like"),
        ("tandem://[::1:7800/#a.b", "looks like"),
        ("tandem://cloud..example:7800/#a.b", "looks like"),
        (f"tandem://{'a' * 64}.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example:7800/", "no fingerprint and token"),
        ("tandem://cloud.example:7800/#abc", "no fingerprint and token"),
        (TEXT[:-1], "damaged"),
        (TEXT + "A", "damaged"),
        (TEXT.replace("#", "#A"), "damaged"),
        (TEXT[:-2] + "é", "damaged"),
    ],
)
def test_what_is_no_link_gets_one_sentence_without_the_token(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        JoinLink.parse(text)
    said = str(raised.value)
    assert TOKEN[:-2] not in said
    assert said.count(". ") == 0
    assert len(said) < 260


NOW = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)


def der(identity: Identity) -> bytes:
    return ssl.PEM_cert_to_DER_cert(identity.certificate_file.read_text())


def test_it_is_made_once_and_kept_private(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    first = load_identity(folder, NOW)
    before = [(folder / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE)]
    assert load_identity(folder, NOW + dt.timedelta(days=300)) == first
    assert [(folder / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE)] == before
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(os.listdir(folder)) == [KEY_FILE, CERTIFICATE_FILE]


@pytest.mark.parametrize("later", [dt.timedelta(days=340), 3 * VALID, dt.timedelta(days=-400)])
def test_a_certificate_near_its_end_is_renewed_and_the_key_stays(tmp_path: Path, later: dt.timedelta) -> None:
    """The last one: it was made while the clock was a year ahead."""
    first, first_der = load_identity(tmp_path, NOW), der(load_identity(tmp_path, NOW))
    second = load_identity(tmp_path, NOW + later)
    assert second.fingerprint == first.fingerprint
    assert der(second) != first_der
    check_certificate(der(second), first.fingerprint, "here", NOW + later)


def test_another_cloud_s_certificate_or_none_is_refused(tmp_path: Path) -> None:
    one, other = (load_identity(tmp_path / name, NOW) for name in ("one", "other"))
    check_certificate(der(one), one.fingerprint, "here", NOW)
    for shown in (der(one), None, b"", b"garbage"):
        with pytest.raises(ProtocolError, match=r"here is not the cloud .* another fingerprint"):
            check_certificate(shown, other.fingerprint, "here", NOW)


@pytest.mark.parametrize("days", [-3, 400])
def test_a_clock_far_off_is_told_both_times(tmp_path: Path, days: int) -> None:
    identity = load_identity(tmp_path, NOW)
    clock = NOW + dt.timedelta(days=days)
    with pytest.raises(ProtocolError, match=f"says {clock:%Y-%m-%d} 12:00 UTC; set the clock"):
        check_certificate(der(identity), identity.fingerprint, "here", clock)


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    load_identity(tmp_path, NOW)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        load_identity(tmp_path, NOW)


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_key_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    load_identity(tmp_path, NOW)
    (tmp_path / KEY_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="give every device a new link"):
        load_identity(tmp_path, NOW)
    assert (tmp_path / KEY_FILE).read_bytes() == content


def test_a_damaged_or_foreign_certificate_is_made_again(tmp_path: Path) -> None:
    first = load_identity(tmp_path / "a", NOW)
    first.certificate_file.write_bytes(b"garbage")
    assert load_identity(tmp_path / "a", NOW).fingerprint == first.fingerprint
    other = load_identity(tmp_path / "b", NOW)
    first.certificate_file.write_bytes(other.certificate_file.read_bytes())
    again = load_identity(tmp_path / "a", NOW)
    check_certificate(der(again), first.fingerprint, "here", NOW)


def test_a_device_is_recognised_by_its_secret(tmp_path: Path) -> None:
    devices = DeviceList(tmp_path / "keys")
    assert devices.all() == []
    assert devices.recognise(b"x" * 16) is None
    phone, laptop = devices.add("phone"), devices.add("laptop")
    found = devices.recognise(phone)
    assert found is not None
    assert (found.name, found.is_welcome) == ("phone", True)
    assert devices.recognise(phone[::-1]) is None
    first = devices.revoke("phone")
    assert devices.revoke("phone") == first, "the time of the first revocation stays"
    again, other = devices.recognise(phone), devices.recognise(laptop)
    assert again is not None
    assert not again.is_welcome
    assert other is not None
    assert other.is_welcome
    new = devices.recognise(devices.add("phone"))
    assert new is not None
    assert new.is_welcome
    assert devices.recognise(phone) is None, "its name is that of a new device"
    assert len(devices.all()) == 2


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    secret = DeviceList(tmp_path).add("phone")
    path = tmp_path / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert secret not in content
    assert secret.hex().encode() not in content


def test_mistakes_get_one_sentence(tmp_path: Path) -> None:
    devices = DeviceList(tmp_path)
    with pytest.raises(ConfigError, match="none has been added yet"):
        devices.revoke("phone")
    devices.add("phone")
    with pytest.raises(ConfigError, match="the nearest is 'phone'"):
        devices.revoke("fone")
    with pytest.raises(ConfigError, match="There is a device 'phone' already"):
        devices.add("phone")


@pytest.mark.parametrize("content", ["", "[]", '{"devices": [{"name": "x"}]}', json.dumps({"devices": 3})])
def test_a_damaged_file_is_kept(tmp_path: Path, content: str) -> None:
    DeviceList(tmp_path).add("phone")
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match="is damaged"):
        DeviceList(tmp_path).add("laptop")
    assert (tmp_path / FILE).read_text() == content

"""The list of devices: tokens are recognised, revoked and never kept."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem.joining.join_link import FILE, DeviceList


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

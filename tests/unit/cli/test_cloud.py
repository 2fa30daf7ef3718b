"""`tandem cloud serve`: when it prints a join link, and what it says where it prints none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.joining.devices import DeviceList

from .conftest import Run


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of keys; the cloud is a stand-in that runs until a Ctrl-C, which comes at once."""

    @contextlib.contextmanager
    def served(_config: object, _address: object, folder: Path, _log: object) -> Iterator[Any]:
        devices = DeviceList(folder)

        def link_for(name: str) -> str:
            devices.add(name)
            return f"the link of {name}"

        yield SimpleNamespace(devices=devices, link_for=link_for, port=7800, public_address=("here", 7800))

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tandem.sites.host.served", served)
    stand_in = SimpleNamespace(Event=lambda: SimpleNamespace(wait=interrupt))
    monkeypatch.setattr("tandem.cli.cloud.threading", stand_in)
    (tmp_path / "keys").mkdir(mode=0o700)
    return tmp_path / "keys"


def test_the_second_start_says_why_it_prints_no_link(keys: Path, run: Run) -> None:
    serve = ("cloud", "serve", "--keys", str(keys))
    first, second = run(*serve), run(*serve)
    assert (first.code, first.out, second.out) == (0, "the link of device\n", ""), first.err
    why = "device may join, by the link of before; `tandem cloud add NAME` prints one for another"
    assert why not in first.err
    assert f"devices    {why}" in second.err
    assert run(*serve, "--device", "phone").out == "the link of phone\n"
    DeviceList(keys).revoke("device")
    assert "devices    phone may join" in run(*serve).err
    DeviceList(keys).revoke("phone")
    assert "devices    none may join" in run(*serve).err

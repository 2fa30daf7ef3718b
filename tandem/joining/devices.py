"""The devices that a cloud knows: their names, and digests of their tokens. The tokens themselves are not kept."""

from __future__ import annotations

import contextlib
import datetime as dt
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from tandem.errors import ConfigError, nearest
from tandem.joining.join_link import SECRET_BYTES
from tandem.system.paths import locked, read_private, write_private

FILE, LOCK = "devices.json", "devices.lock"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, as the cloud's file has it. Times are ISO 8601 in UTC, empty if never."""

    name: str
    digest: str  # SHA-256 of its secret, hexadecimal
    added: str
    joined: str = ""  # last
    revoked: str = ""

    @property
    def is_welcome(self) -> bool:
        """Whether its token still opens the cloud."""
        return not self.revoked


class DeviceList:
    """The list in a folder. Every call reads the file, so that a command and a running cloud see the same."""

    def __init__(self, folder: Path) -> None:
        """The folder is made when something is written."""
        self._folder = folder
        self._path = folder / FILE

    def all(self) -> list[Device]:
        """All devices, in the order in which they were added. Raises ConfigError for a damaged file."""
        content = read_private(self._path)
        if content is None:
            return []
        try:
            return [Device(**each) for each in json.loads(content)["devices"]]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{self._path} is damaged; restore it, or delete it and give every device a new link."
            ) from None

    def add(self, name: str, now: dt.datetime | None = None) -> bytes:
        """The secret of a new device. Raises ConfigError for a name that is taken or none."""
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"A device's name has up to 32 letters, digits, _ and -, a letter first (got {name!r:.60}); choose "
                "another."
            )
        secret = secrets.token_bytes(SECRET_BYTES)
        with locked(self._folder / LOCK):
            devices = self.all()
            if any(device.name == name and device.is_welcome for device in devices):
                raise ConfigError(
                    f"There is a device {name!r} already; choose another name, or revoke it first with "
                    f"`tandem cloud revoke {name}`."
                )
            kept = [device for device in devices if device.name != name]
            self._write([*kept, Device(name=name, digest=_digest(secret), added=_stamp(now))])
        return secret

    def revoke(self, name: str, now: dt.datetime | None = None) -> Device:
        """The device of that name, which may not join any more. Raises ConfigError if there is none."""
        with locked(self._folder / LOCK):
            devices = {device.name: device for device in self.all()}
            if name not in devices:
                remedy = (
                    f"the nearest is {nearest(name, devices)!r}" if devices else "none has been added yet"
                )
                raise ConfigError(f"This cloud knows no device {name!r:.60}; {remedy}.")
            if devices[name].is_welcome:
                devices[name] = replace(devices[name], revoked=_stamp(now))
            self._write(list(devices.values()))
        return devices[name]

    def recognise(self, secret: bytes) -> Device | None:
        """The device with this secret, also one that was revoked; None for a stranger. Takes the same time for all."""
        digest, recognised = _digest(secret), None
        for device in self.all():
            if hmac.compare_digest(device.digest, digest):
                recognised = device
        return recognised

    def note_joined(self, name: str, now: dt.datetime | None = None) -> None:
        """Record when a device joined."""
        with locked(self._folder / LOCK):
            devices = [
                replace(device, joined=_stamp(now)) if device.name == name else device
                for device in self.all()
            ]
            self._write(devices)

    @property
    def version(self) -> float:
        """Changes whenever the file does."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_mtime_ns
        return 0.0

    def _write(self, devices: list[Device]) -> None:
        text = json.dumps({"devices": [asdict(device) for device in devices]}, indent=1)
        write_private(self._path, text.encode() + b"\n")


def _digest(secret: bytes) -> str:
    return sha256(b"tandem device" + secret).hexdigest()


def _stamp(now: dt.datetime | None) -> str:
    return (now or dt.datetime.now(dt.UTC)).isoformat(timespec="seconds")

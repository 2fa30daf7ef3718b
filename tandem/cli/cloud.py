"""`tandem cloud`: a cloud that devices join by a link, and the list of its devices."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tandem.cli.options import (
    LOOPBACK,
    AsJson,
    ConfigFile,
    Overrides,
    load_settings,
    parse_address,
    with_options,
)
from tandem.cli.output import StageLog, print_json
from tandem.cli.usage import new_app
from tandem.errors import ConfigError
from tandem.system.files import read_private, write_private
from tandem.system.paths import data_folder

if TYPE_CHECKING:
    from tandem.joining.devices import Device

DEFAULT_PORT = 7800
ADDRESS_FILE = "address.json"
FIRST_DEVICE = "device"
"""The name for which the first link is printed where no device is known yet."""


def _parse_address(text: str) -> tuple[str, int]:
    return parse_address(text, DEFAULT_PORT)


Listen = Annotated[
    Any,
    Option(
        "--listen",
        metavar="HOST:PORT",
        parser=_parse_address,
        help=f"where devices connect; 0.0.0.0 is every address of this machine (default: {LOOPBACK}:{DEFAULT_PORT})",
    ),
]
Public = Annotated[
    Any,
    Option(
        "--public",
        metavar="HOST:PORT",
        parser=_parse_address,
        help="the address that join links name, where devices reach this machine by another one",
    ),
]
PublicAddress = Annotated[
    Any,
    Option(
        "--public",
        metavar="HOST:PORT",
        parser=_parse_address,
        help="the address that the link names (default: the one of the last `tandem cloud serve`)",
    ),
]
Keys = Annotated[
    Path | None,
    Option(
        "--keys",
        metavar="DIR",
        help="folder of this cloud's key and list of devices (default: the user's own)",
    ),
]
Name = Annotated[str, Argument(metavar="NAME", help="of the device", show_default=False)]
DeviceName = Annotated[
    str | None, Option("--device", metavar="NAME", help="print the join link of a new device, too")
]


def _cloud() -> None:
    """Serve devices that join by a link, without a Ray cluster."""


app = new_app(_cloud)


@app.command()
@with_options(models=True)
def serve(
    listen: Listen = None,
    public: Public = None,
    device: DeviceName = None,
    keys: Keys = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Run the cloud's side until it is stopped, and let the devices of its list join.

    For the first device, or with --device, its join link is printed; give it to that device alone.
    """
    log = StageLog()
    config = load_settings(config_file, overrides, log)
    folder = keys or _default_folder()
    host, port = listen or (LOOPBACK, DEFAULT_PORT)
    from tandem.sites.serving import Address, served

    public_host, public_port = public or (_public_host(host), 0)
    with served(config, Address(host, port, public_host, public_port), folder, log) as cloud:
        _remember_address(folder, cloud.public_address)
        log(f"listening: {host}:{cloud.port}, until Ctrl-C")
        if device is None and not cloud.devices.all():
            device = FIRST_DEVICE
        if device is not None:
            print(cloud.link_for(device), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        log("stopping")
    return 0


@app.command()
def add(name: Name, address: PublicAddress = None, keys: Keys = None) -> int:
    """Print the join link of a new device; a running cloud knows it at once."""
    from tandem.joining.devices import DeviceList
    from tandem.joining.identity import load_identity
    from tandem.joining.join_link import JoinLink

    folder = keys or _default_folder()
    host, port = address or _recall_address(folder)
    identity = load_identity(folder)
    print(JoinLink(host, port, identity.fingerprint, DeviceList(folder).add(name)))
    return 0


@app.command()
def devices(keys: Keys = None, as_json: AsJson = False) -> int:
    """List the devices that may join, and those that were revoked."""
    from tandem.joining.devices import DeviceList

    known = DeviceList(keys or _default_folder()).all()
    if as_json:
        print_json([_shown(device) for device in known])
        return 0
    for line in _table(known):
        print(line)
    return 0


@app.command()
def revoke(name: Name, keys: Keys = None) -> int:
    """Take a device's token back; where it is connected, it is disconnected within a second."""
    from tandem.joining.devices import DeviceList

    device = DeviceList(keys or _default_folder()).revoke(name)
    print(f"The device {device.name} was revoked on {device.revoked}.")
    return 0


def _shown(device: Device) -> dict[str, str | None]:
    """What is printed of a device: nothing of its token."""
    return {
        "name": device.name,
        "added": device.added,
        "joined": device.joined or None,
        "revoked": device.revoked or None,
    }


def _table(known: list[Device]) -> list[str]:
    if not known:
        return ["No device may join yet; `tandem cloud add NAME` prints a link for one."]
    rows = [("device", "added", "last joined", "state")]
    rows += [
        (device.name, device.added, device.joined or "never", "revoked" if device.revoked else "welcome")
        for device in known
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _default_folder() -> Path:
    return data_folder() / "keys"


def _public_host(host: str) -> str:
    """The host that links name: of a cloud that listens everywhere, the address of this machine's own network."""
    return socket.getfqdn() if host in ("0.0.0.0", "::") else host


def _remember_address(folder: Path, address: tuple[str, int]) -> None:
    """For links that are made later."""
    write_private(folder / ADDRESS_FILE, json.dumps(address).encode())


def _recall_address(folder: Path) -> tuple[str, int]:
    """Where the cloud of this folder was last served. Raises ConfigError if it never was."""
    content = read_private(folder / ADDRESS_FILE)
    with contextlib.suppress(ValueError, TypeError):
        host, port = json.loads(content or b"")
        return str(host), int(port)
    raise ConfigError(
        f"A join link needs the cloud's address, and none has been served with the keys in {folder}; start `tandem "
        "cloud serve` first, or pass --public HOST:PORT."
    )

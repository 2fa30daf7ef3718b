"""`tandem cloud`: a cloud that devices join by a link, and the list of its devices."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tandem.cli.options import LOOPBACK, MODELS, AsJson, SettingsOptions, new_app, parse_address, with_options
from tandem.cli.output import StageLog, emit, print_json
from tandem.errors import ConfigError
from tandem.system.paths import data_folder, read_private, write_private

DEFAULT_PORT = 7800
ADDRESS_FILE = "address.json"
FIRST_DEVICE = "device"
"""The name for which the first link is printed where no device is known yet."""


Keys = Annotated[
    Path | None,
    Option(metavar="DIR", help="folder of this cloud's key and list of devices (default: the user's own)"),
]
Name = Annotated[str, Argument(metavar="NAME", help="of the device", show_default=False)]


def _address(flag: str, help: str) -> Any:
    return Option(flag, metavar="HOST:PORT", parser=lambda text: parse_address(text, DEFAULT_PORT), help=help)


def _cloud() -> None:
    """Serve devices that join by a link, without a Ray cluster."""


app = new_app(_cloud)


@app.command()
@with_options(*MODELS)
def serve(
    listen: Annotated[
        Any,
        _address(
            "--listen",
            f"where devices connect; 0.0.0.0 is every address of this machine (default: {LOOPBACK}:{DEFAULT_PORT})",
        ),
    ] = None,
    public: Annotated[
        Any,
        _address(
            "--public", "the address that join links name, where devices reach this machine by another one"
        ),
    ] = None,
    device: Annotated[
        str | None, Option(metavar="NAME", help="print the join link of a new device, too")
    ] = None,
    keys: Keys = None,
    *,
    settings: SettingsOptions,
) -> int:
    """Run the cloud's side until it is stopped, and let the devices of its list join.

    For the first device, or with --device, its join link is printed; give it to that device alone.
    """
    log = StageLog()
    config = settings.load(log)
    folder = keys or _default_folder()
    host, port = listen or (LOOPBACK, DEFAULT_PORT)
    from tandem.sites.host import Address, served

    # Links to a cloud that listens everywhere name this machine's address in its own network.
    public_host, public_port = public or (socket.getfqdn() if host in ("0.0.0.0", "::") else host, 0)
    with served(config, Address(host, port, public_host, public_port), folder, log) as cloud:
        write_private(folder / ADDRESS_FILE, json.dumps(cloud.public_address).encode())
        log(f"listening: {host}:{cloud.port}, until Ctrl-C")
        devices = cloud.admission.devices.all()
        if device is None and devices:
            names = ", ".join(one.name for one in devices if one.is_welcome) or "none"
            log(
                f"devices: {names} may join, by the link of before; `tandem cloud add NAME` prints one for another"
            )
        else:
            emit(cloud.link_for(device or FIRST_DEVICE))
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        log("stopping")
    return 0


@app.command()
def add(
    name: Name,
    address: Annotated[
        Any,
        _address(
            "--public", "the address that the link names (default: the one of the last `tandem cloud serve`)"
        ),
    ] = None,
    keys: Keys = None,
) -> int:
    """Print the join link of a new device; a running cloud knows it at once."""
    from tandem.joining.join_link import DeviceList, JoinLink, load_identity

    folder = keys or _default_folder()
    host, port = address or _recall_address(folder)
    identity = load_identity(folder)
    emit(JoinLink(host, port, identity.fingerprint, DeviceList(folder).add(name)))
    return 0


@app.command()
def devices(keys: Keys = None, as_json: AsJson = False) -> int:
    """List the devices that may join, and those that were revoked."""
    from tandem.joining.join_link import DeviceList

    listed = DeviceList(keys or _default_folder()).all()
    if as_json:
        shown = ("name", "added", "joined", "revoked")  # nothing of their tokens
        print_json([{name: getattr(device, name) or None for name in shown} for device in listed])
    elif not listed:
        emit("No device may join yet; `tandem cloud add NAME` prints a link for one.")
    else:
        rows = [("device", "added", "last joined", "state")]
        for device in listed:
            state = "revoked" if device.revoked else "welcome"
            rows.append((device.name, device.added, device.joined or "never", state))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            emit("  ".join(map(str.ljust, row, widths)).rstrip())
    return 0


@app.command()
def revoke(name: Name, keys: Keys = None) -> int:
    """Take a device's token back; where it is connected, it is disconnected within a second."""
    from tandem.joining.join_link import DeviceList

    device = DeviceList(keys or _default_folder()).revoke(name)
    emit(f"The device {device.name} was revoked on {device.revoked}.")
    return 0


def _default_folder() -> Path:
    return data_folder() / "keys"


def _recall_address(folder: Path) -> tuple[str, int]:
    """The address at which the cloud of this folder was last served. Raises ConfigError if it never was."""
    content = read_private(folder / ADDRESS_FILE)
    with contextlib.suppress(ValueError, TypeError):
        host, port = json.loads(content or b"")
        return str(host), int(port)
    raise ConfigError(
        f"A join link needs the cloud's address, and none has been served with the keys in {folder}; start `tandem "
        "cloud serve` first, or pass --public HOST:PORT."
    )

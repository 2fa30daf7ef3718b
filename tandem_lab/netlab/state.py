"""What was made, in one small JSON file per network, so that another process can change or remove it.

The file is a note and no proof: what Tandem may remove is told by the marks of the namespaces. Knows files only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal, TypeAlias

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import Layout
from tandem_lab.netlab.shape import Shape

FOLDER = Path("/run/tandem/netlab")
"""For every network of this machine; emptied by a reboot, as the namespaces are."""

Kind: TypeAlias = Literal["host", "router"]
"""Whose netem shapes the link: this machine's kernel, or the User-Mode-Linux router."""

_VERSION = 1
_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One network. It is written before anything is made, and again when all is there."""

    name: str
    subnet: str
    is_complete: bool = False
    kind: Kind | None = None  # None: not yet known
    router_pid: int | None = None  # of the router's first process
    shape: Shape = field(default_factory=Shape)

    @property
    def layout(self) -> Layout:
        """Its names and addresses."""
        return Layout(self.name, IPv4Network(self.subnet))


class Store:
    """The notes in a folder. A network NAME has the file NAME.json and, with a router, the folder NAME."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def read(self, name: str) -> State | None:
        """A network's note; None if there is none. Raises NetLabError if it is damaged."""
        file = self._file(name)
        try:
            value = json.loads(file.read_text("utf-8"))
            if value.pop("version") != _VERSION:
                raise ValueError("another version")
            state = State(**{**value, "shape": Shape(**value["shape"])})
            return state if state.layout.name == name else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NetLabError(
                f"{file} must hold what Tandem wrote there, but it does not; remove that file, then run "
                f"`tandem lab netlab down --name {name}`."
            ) from error

    def write(self, state: State) -> None:
        """Writes a network's note in one step: a reader sees the old one or the new one."""
        file = self._file(state.name)
        draft = file.with_suffix(".new")
        draft.write_text(json.dumps({"version": _VERSION, **asdict(state)}, indent=2) + "\n", "utf-8")
        draft.replace(file)

    def rewrite(self, state: State) -> None:
        """As `write`, for a network that another process may remove meanwhile: a note that is gone does not come back.

        NetLabError then, and where it cannot be written.
        """
        try:
            if not self._file(state.name).exists():
                raise FileNotFoundError("it is there no more")
            self.write(state)
        except OSError as error:
            raise NetLabError(
                f"The note of {state.name!r} must stay while its network is changed, but it could not be written "
                f"({error.strerror or error}); see `tandem lab netlab status`."
            ) from error

    def forget(self, name: str) -> None:
        """Removes everything that was noted of a network."""
        self._file(name).unlink(missing_ok=True)
        self._file(name).with_suffix(".new").unlink(missing_ok=True)
        shutil.rmtree(self.workplace(name), ignore_errors=True)

    def names(self) -> list[str]:
        """The networks that are noted."""
        return sorted(file.stem for file in self._folder.glob("*.json"))

    def workplace(self, name: str) -> Path:
        """Where a network's router has its files."""
        return self._folder / name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one process at a time make or remove networks; the folder is there meanwhile, and goes if empty."""
        handle = self._lock()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                self._folder.parent.rmdir()
            os.close(handle)

    def _lock(self) -> int:
        """The folder, locked; it is opened again if whoever had the lock before us removed it."""
        for _ in range(_ATTEMPTS):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            except (FileNotFoundError, FileExistsError):
                continue
            fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if self._folder.stat().st_ino == os.fstat(handle).st_ino:
                    return handle
            os.close(handle)
        raise NetLabError(
            f"{self._folder} must be a folder, but it cannot be made or opened; look what is there."
        )

    def _file(self, name: str) -> Path:
        return self._folder / f"{Layout(name).name}.json"

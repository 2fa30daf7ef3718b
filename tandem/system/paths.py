"""The folders of Tandem on this machine, by the platform's rules (XDG on Linux), and files for this user alone."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from tandem.corpora import AUTO, NAMED_MODELS, TOYS
from tandem.errors import ConfigError, did_you_mean
from tandem.topology import Party

_APP = "tandem"


def cache_folder() -> Path:
    """The folder of what can be made again: $XDG_CACHE_HOME/tandem or ~/.cache/tandem, or a temporary one.

    ConfigError if the temporary folder cannot be trusted.
    """
    base = platformdirs.user_cache_path(_APP, appauthor=False)
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base
    except OSError:
        return _temporary_folder()


def write_whole(path: Path, content: bytes, *, to_disk: bool = False) -> None:
    """A file, mode 0600, that is there whole or not at all. to_disk: it is on the disk then. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writing-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            if to_disk:
                os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def data_folder() -> Path:
    """The folder of what a person would miss: $XDG_DATA_HOME/tandem, or ~/.local/share/tandem."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def state_folder() -> Path:
    """The folder of what a person would not miss: $XDG_STATE_HOME/tandem, or ~/.local/state/tandem."""
    return platformdirs.user_state_path(_APP, appauthor=False)


def index_folder(party: Party) -> Path:
    """The folder in which `tandem index` puts a party's index by default."""
    return data_folder() / party


def looks_local(name: str) -> bool:
    """Whether a name is plainly a path, and no hub id."""
    return name in (".", "..") or name.startswith(("./", "../", "/", "~"))


def absolute(name: str, folder: Path) -> str:
    """An absolute path; a relative one counts from `folder`."""
    return str((folder / Path(name).expanduser()).resolve())


def resolve(name: str, folder: Path) -> str:
    """A name that is plainly a path, made absolute; a hub id stays."""
    return absolute(name, folder) if looks_local(name) else name


def resolve_model(name: str, folder: Path) -> str:
    """As `resolve`; a folder that holds a model, or a GGUF file, is found without the dot before its name, too."""
    if name in (AUTO, *NAMED_MODELS):
        return name
    kinds = ("config.json", "adapter_config.json")
    is_file = name.lower().endswith(".gguf") and os.path.isfile(folder / name)
    is_model = is_file or any(os.path.isfile(folder / name / file) for file in kinds)
    return absolute(name, folder) if is_model else resolve(name, folder)


def check_bundled(model: str) -> str:
    """The name of a model, unless it begins as those of the bundled ones do and is none of them. Raises ConfigError."""
    if model.startswith("bundled") and "/" not in model and model not in TOYS:
        raise ConfigError(f"There is no bundled model {model!r}; {did_you_mean(model, list(TOYS))}")
    return model


def suggest_path(path: Path) -> str:
    """The end of a sentence about a path that is not there: the nearest one that is, if any is close."""
    try:
        above = next(folder for folder in path.parents if folder.exists())
        names = [entry.name for entry in above.iterdir()]
        close = difflib.get_close_matches(path.relative_to(above).parts[0], names, 1)
    except (OSError, ValueError):  # what cannot be listed, or is no name of a file
        close = []
    return f"the nearest is {above / close[0]}." if close else "correct the path."


def _temporary_folder() -> Path:
    """A folder of this user's alone in the system's temporary folder, where others might have made one before."""
    folder = Path(tempfile.gettempdir()) / f"tandem-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"The folder for caches must belong to this user alone, but {folder} belongs to uid {status.st_uid} "
            f"with mode {stat.S_IMODE(status.st_mode):04o}; remove it, or set XDG_CACHE_HOME to a writable folder."
        )
    return folder


PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_folder(folder: Path) -> None:
    """A folder for this user alone; an existing one stays as it is. Raises ConfigError."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made ({error.strerror}); check the permissions above it."
        ) from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also on a full disk; it is on the disk then. Raises ConfigError."""
    try:
        write_whole(path, content, to_disk=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some file systems cannot promise it
                os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); what was there before is kept. Check the disk and the "
            "folder's permissions."
        ) from None


def read_private(path: Path) -> bytes | None:
    """The content; None if there is no such file. Raises ConfigError where others may read it, too."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path} must be readable by this user alone, but has mode {mode:04o}; if nobody else has seen "
                    f"it, run `chmod 600 {path}`, otherwise delete it and start again."
                )
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes that lock this file waiting. Raises ConfigError."""
    make_folder(path.parent)
    with open_lock(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def open_lock(path: Path) -> Iterator[int]:
    """The descriptor of a file to lock. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be opened ({error.strerror}); check the disk and the folder's permissions."
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""`tandem init`: the settings for a folder of documents, as a file to begin with, and what to run next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.options import CONFIG_NAME
from tandem.errors import ConfigError
from tandem.nearest import did_you_mean
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config import Config

INDEXES = ".tandem"
"""Folder of the indexes, next to the settings; hidden, so that no build reads it."""

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="the device's documents", show_default=False)]
CloudFolder = Annotated[
    str | None,
    typer.Option("--cloud", metavar="FOLDER", help="the cloud's documents (default: the cloud has none)"),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="a folder or a hub id, for both parties (default: the bundled model)"),
]
Force = Annotated[bool, typer.Option("--force", help=f"overwrite a {CONFIG_NAME} that is there")]


def init(folder: Folder, cloud: CloudFolder = None, model: Model = None, force: Force = False) -> int:
    """Write a tandem.toml for a folder of documents, and say what to run next.

    The file goes into the current folder, where every command finds it, and the indexes next to it. Every setting is in
    it with its meaning; those that keep their default are comments.
    """
    folders = {Party.DEVICE: _existing(folder)}
    if cloud is not None:
        folders[Party.CLOUD] = _existing(cloud)
    text = render(folders, None if model is None else _model(model))
    try:
        with Path(CONFIG_NAME).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{Path(CONFIG_NAME).absolute()} is there already; edit it, or write it again with --force."
        ) from None
    except OSError as error:
        raise ConfigError(f"{Path(CONFIG_NAME).absolute()} cannot be written ({error.strerror}).") from None
    print(f"Wrote {CONFIG_NAME}. Next:", *(f"  {line}" for line in next_lines(folders, model)), sep="\n")
    return 0


def render(folders: dict[Party, Path], model: str | None) -> str:
    """The file for these folders and this model of both parties."""
    from tandem.cli.config import HEADER

    lines = ["# " + _index_line(party, path).replace("\n", "?") for party, path in folders.items()]
    head = "\n".join(
        [HEADER, "# Made by tandem init. These make the indexes, and bring them up to date:", *lines]
    )
    return f"{head}\n\n{_settings(folders, model).to_toml(only_changed=True)}"


def next_lines(folders: dict[Party, Path], model: str | None) -> list[str]:
    """The commands that make use of the file."""
    lines = [_index_line(party, path) for party, path in folders.items()]
    if model is None:
        lines.append(
            f"edit {CONFIG_NAME}: set device.model and cloud.model (the bundled model is a demonstration)"
        )
    return [*lines, "tandem doctor", 'tandem search device "QUESTION"', 'tandem ask "QUESTION"']


def _index_line(party: Party, path: Path) -> str:
    return f"tandem index {party} {shlex.quote(str(path))}"


def _settings(folders: dict[Party, Path], model: str | None) -> Config:
    from tandem.config import Config
    from tandem.overrides import replace_settings

    values: dict[str, dict[str, Any]] = {
        party: {"index": f"{INDEXES}/{party}"} if party in folders else {"num_documents": 0}
        for party in Party
    }
    if model is not None:
        values = {party: {"model": model, **own} for party, own in values.items()}
    return replace_settings(Config(), values)


def _existing(text: str) -> Path:
    """A file or folder, made absolute. Raises ConfigError with the nearest name where there is none."""
    path = Path(os.path.abspath(Path(text).expanduser()))
    if path.exists():
        return path
    names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    hint = did_you_mean(path.name, names) if names else "check its path."
    hint = hint if hint.endswith("?") else "check its path."
    raise ConfigError(f"The documents must be a file or a folder, but {path} does not exist; {hint}")


def _model(text: str) -> str:
    """A folder as the settings name it, or a hub id."""
    path = Path(text).expanduser()
    if not path.is_dir():
        if text.startswith((".", "/", "~")):
            raise ConfigError(
                f"The model must be a folder or a hub id, but {text} is no folder; check its path."
            )
        return text
    return text if text.startswith((".", "/", "~")) else f"./{text}"

"""Options that several commands share: their types, how their texts are read, and the settings they add up to."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.config import Config

CONFIG_NAME = "tandem.toml"
SEED_LIMIT = 1 << 64

Function = TypeVar("Function", bound=Callable[..., int])


# ---- how texts are read --------------------------------------------------------------------------------------


def parse_party(text: str) -> Party:
    """The party of that name. Raises a usage error for any other."""
    if text not in set(PARTIES):
        raise typer.BadParameter(f"must be device or cloud (got {text!r})")
    return Party(text)


def parse_seed(text: str) -> int:
    """A seed of 64 bits."""
    if not (text.isascii() and text.isdigit() and int(text) < SEED_LIMIT):
        raise typer.BadParameter(f"must be a whole number from 0 to 2^64 - 1 (got {text!r})")
    return int(text)


def parse_count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


# ---- options of several commands -----------------------------------------------------------------------------

PartyArgument = Annotated[
    Party, typer.Argument(metavar="PARTY", parser=parse_party, help="device or cloud", show_default=False)
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="settings (default: tandem.toml in this folder, if there is one)"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="one setting, as section.key=value; may be repeated"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_seed, help="repeat an answer exactly (default: a new seed)"),
]


def load_settings(
    file: str | None,
    overrides: Sequence[str] | None,
    extra: Sequence[str] = (),
    log: Callable[[str], None] | None = None,
) -> Config:
    """The settings of a command line: --config, or tandem.toml in this folder; then --set; then `extra`.

    log: receives the name of the file. Raises ConfigError.
    """
    from tandem.config import Config

    if file is None and Path(CONFIG_NAME).is_file():
        file = CONFIG_NAME
    config = Config.load(file, [*(overrides or ()), *extra])
    if file is not None and log is not None:
        log(f"settings: {file}")
    return config


# ---- sampling ------------------------------------------------------------------------------------------------


def with_sampling(command: Function) -> Function:
    """Give a command one option for each field of SamplingParams; they reach it as texts in `**sampling`."""
    from tandem.sampling import SamplingParams

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    fields: Mapping[str, Any] = cast(Any, SamplingParams).__pydantic_fields__
    added = [_sampling_parameter(name, field) for name, field in fields.items()]
    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    return command


def _sampling_parameter(name: str, field: Any) -> inspect.Parameter:
    is_list = isinstance(field.default, tuple)
    default = "" if is_list else f" (default: {field.default:g})"
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar="TEXT" if is_list else "N",
        help=f"{field.description}{'; may be repeated' if is_list else default}",
        show_default=False,
    )
    kind = list[str] | None if is_list else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def sampling_overrides(options: Mapping[str, Any]) -> list[str]:
    """The sampling options that were given, as settings."""
    return [
        f"sampling.{name}={json.dumps(value) if isinstance(value, list) else value}"
        for name, value in options.items()
        if value is not None
    ]

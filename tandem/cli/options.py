"""Options that several commands share: their types, how their texts are read, and the settings they add up to."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tandem.config.checks import as_toml
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.config.checks import Setting
    from tandem.config.schema import Config

CONFIG_NAME = "tandem.toml"
LOOPBACK = "127.0.0.1"
SEED_LIMIT = 1 << 64
QUESTION_SETTINGS = (
    "sampling",
    "decoding.mode",
    "decoding.placement",
    "decoding.pacing",
    "decoding.length_policy",
    "decoding.home",
    "cluster.runtime",
)
"""Settings that commands which ask questions have as options."""
OR_A_LIST = ", or a list of them"
"""End of a setting's meaning that does not suit an option, which is repeated instead."""

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


def new_seed() -> int:
    """For an answer whose seed nobody gave; it fits a signed integer of 64 bits, as JSON readers have."""
    return secrets.randbits(63)


def parse_count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def parse_documents(text: str) -> tuple[tuple[Party, ...], int]:
    """The parties and the number of "8" or "device:4"."""
    party, _, number = text.rpartition(":")
    if party not in {"", *PARTIES} or not (number.isascii() and number.isdigit()):
        raise typer.BadParameter(f"must be N or PARTY:N, such as device:4 (got {text!r})")
    return (Party(party),) if party else PARTIES, int(number)


def parse_filter(text: str) -> tuple[str, str, str]:
    """Party, key and value of "device:source=notes.md". Raises a usage error."""
    party, _, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if party not in set(PARTIES) or not key or not equals:
        raise typer.BadParameter(f"must be PARTY:KEY=VALUE, such as device:source=notes.md (got {text!r})")
    return party, key, value


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of "HOST:PORT", "[::1]:7800", or "HOST". Raises a usage error."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (text.count(":") > 1 and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise typer.BadParameter(f"must be HOST:PORT, such as 192.0.2.1:{default_port} (got {text!r})")
    return host, int(port)


def merge_filters(filters: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, list[Any]]]:
    """`device_filter` and `cloud_filter`. What is typed may be a text or a number, so both are admitted."""
    merged: dict[str, dict[str, list[Any]]] = {}
    for party, key, value in filters:
        values = merged.setdefault(f"{party}_filter", {}).setdefault(key, [])
        values.append(value)
        with contextlib.suppress(ValueError):
            number = json.loads(value) if len(value) < 100 else value
            values += [number] if isinstance(number, int | float) else []
    return merged


# ---- options of several commands -----------------------------------------------------------------------------

PartyArgument = Annotated[
    Party, typer.Argument(metavar="PARTY", parser=parse_party, help="device or cloud", show_default=False)
]
AnyPartyArgument = Annotated[
    str,
    typer.Argument(
        metavar="PARTY",
        help='device or cloud; in mode "federated" server, or the name of a worker',
        show_default=False,
    ),
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
Join = Annotated[
    str | None,
    typer.Option(
        metavar="LINK",
        envvar="TANDEM_JOIN_LINK",
        show_envvar=True,
        help="run the device here and join the cloud of this link, or of the file that holds it (`tandem cloud serve`)",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", parser=parse_seed, help="repeat an answer exactly (default: a new seed)"),
]


NumDocuments = Annotated[
    list[Any] | None,
    typer.Option(
        "--num-documents",
        metavar="[PARTY:]N",
        parser=parse_documents,
        help="documents retrieved per question, at both parties or at one (default: as in the settings); may "
        "be repeated",
    ),
]
Filters = Annotated[
    list[Any] | None,
    typer.Option(
        "--filter",
        metavar="PARTY:KEY=VALUE",
        parser=parse_filter,
        help="use only that party's documents with this metadata, such as device:source=notes.md; repeat it with "
        "another value to admit both, with another key to narrow further",
    ),
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
    from tandem.config.schema import Config

    if file is None and Path(CONFIG_NAME).is_file():
        file = CONFIG_NAME
    config = Config.load(file, [*(overrides or ()), *extra])
    if file is not None and log is not None:
        log(f"settings: {file}")
    return config


MODEL_OPTIONS = {
    "model": (PARTIES, "language model of both parties, as the setting device.model"),
    "device_model": (PARTIES[:1], "language model of the device"),
    "cloud_model": (PARTIES[1:], "language model of the cloud"),
}
"""Options for the settings that are changed most often: the parties that each is for, and its meaning."""


def with_models(command: Function) -> Function:
    """Give a command that has --set the options of MODEL_OPTIONS, each another way to write such a setting."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    place = next(number for number, each in enumerate(own) if each.name == "overrides")
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(metavar="NAME", help=meaning, show_default=False)],
        )
        for name, (_, meaning) in MODEL_OPTIONS.items()
    ]

    @functools.wraps(command)
    def with_overrides(*values: Any, **options: Any) -> int:
        named = {name: options.pop(name, None) for name in MODEL_OPTIONS}
        models = [
            f"{party}.model={named[name]}"
            for name, (parties, _) in MODEL_OPTIONS.items()
            if named[name] is not None
            for party in parties
        ]
        if models:
            options["overrides"] = [*(options.get("overrides") or ()), *models]
        return command(*values, **options)

    before = [
        each.replace(kind=each.KEYWORD_ONLY) if each.kind is each.POSITIONAL_OR_KEYWORD else each
        for each in own
    ]
    parameters = [*before[:place], *added, *before[place:]]
    with_overrides.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_overrides  # type: ignore[return-value]


# ---- settings as options -------------------------------------------------------------------------------------


IN_SECTION = "__"
"""Between the section and the name of a setting, in the name of a command's parameter."""


def with_settings(*keys: str) -> Callable[[Function], Function]:
    """Give a command one option for each of these settings; they reach it as texts in `**settings`, under names that
    `setting_overrides` understands.

    keys: "section.name", or "section" for all of a section. Adding a field to a section adds its option.
    """
    from tandem.config.files import walk
    from tandem.config.schema import Config

    wanted = [
        (section, setting)
        for section, setting, _ in walk(Config())
        if {section, f"{section}.{setting.name}"} & set(keys)
    ]

    def add(command: Function) -> Function:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        added = [_parameter(section, setting) for section, setting in wanted]
        command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return command

    return add


def _parameter(section: str, setting: Setting) -> inspect.Parameter:
    is_list = setting.type is tuple
    default = f"{setting.default:g}" if isinstance(setting.default, int | float) else setting.default
    more = "; may be repeated" if is_list else f" (default: {default})" if default != "" else ""
    choices = f": {', '.join(setting.choices)}" if setting.choices else ""
    option = typer.Option(
        f"--{setting.name.replace('_', '-')}",
        metavar="TEXT" if is_list else "NAME" if setting.choices or setting.type is str else "N",
        help=f"{setting.meaning.removesuffix(OR_A_LIST)}{choices}{more}",
        show_default=False,
    )
    kind = list[str] | None if is_list else str | None
    return inspect.Parameter(
        f"{section}{IN_SECTION}{setting.name}",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


def setting_overrides(options: Mapping[str, Any], num_documents: Sequence[Any] | None = None) -> list[str]:
    """The options that `with_settings` made and that were given, as settings; likewise --num-documents."""
    given = {name: value for name, value in options.items() if value is not None}
    counts = [f"{party}.num_documents={count}" for parties, count in num_documents or () for party in parties]
    return counts + [
        f"{name.replace(IN_SECTION, '.')}={as_toml(tuple(value)) if isinstance(value, list) else value}"
        for name, value in given.items()
    ]

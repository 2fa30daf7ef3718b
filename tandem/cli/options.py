"""Options that several commands share, and one sentence for a wrong command line, with the nearest option."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast, get_type_hints

import typer
from typer import Argument, BadParameter, Option
from typer.core import TyperCommand
from typer.exceptions import TyperException

from tandem import __version__, plugins
from tandem.cli.output import emit
from tandem.config.checks import Setting, SettingError, as_predicate, as_toml
from tandem.errors import ConfigError, TandemError
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.cli.output import StageLog
    from tandem.client.tandem import Answerer, Tandem
    from tandem.config.schema import Config


HELP_COLUMNS = 100


def new_app(root: Callable[..., None]) -> typer.Typer:
    """An app without commands, whose help is plain text; its own help and options are those of `root`."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        subcommand_metavar="COMMAND",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    )
    app.callback()(root)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        emit(f"tandem {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Dual-side RAG: a device's private documents and a cloud's public ones write one answer."""


class LazyCommand(TyperCommand):
    """An app that is imported when it is used; its help line is known before."""

    def __init__(self, name: str, target: str, *, help: str, missing: str | None = None) -> None:
        """target: `module:attribute`, a typer app or a function. missing: what to say where it is not installed."""
        super().__init__(name, help=help)
        self._target, self._missing = target, missing

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        package = self._target.partition(":")[0].partition(".")[0]
        if self._missing is not None and find_spec(package) is None:
            raise TandemError(self._missing)
        target = plugins.load(self._target)
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command()(target)
            target = app
        command = typer.main.get_command(target)
        return command.make_context(info_name, args, parent=parent, **extra)


def explain(error: TyperException) -> str:
    """The sentence for a wrong command line."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if parameter is not None:
        problem = as_predicate(error.message) if error.message else "is missing"
        sentence = f"{parameter.get_error_hint().strip(chr(39))} {problem}"
    else:
        sentence = error.message if isinstance(error, typer.BadParameter) else error.format_message()
    sentence = sentence.rstrip(".")
    if sentence.endswith("?"):
        return sentence
    return f"{sentence}." if context is None else f"{sentence}; see `{context.command_path} --help`."


CONFIG_NAME = "tandem.toml"
LOOPBACK = "127.0.0.1"
MAX_SEED = (1 << 64) - 1
MODELS = ("model", "device_model", "cloud_model")
SHORT: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "model": (
        ("device.model", "cloud.model"),
        "NAME",
        "language model of both parties, as the setting device.model",
    ),
    "device_model": (("device.model",), "NAME", "language model of the device"),
    "cloud_model": (("cloud.model",), "NAME", "language model of the cloud"),
    "num_documents": (
        ("device.num_documents", "cloud.num_documents"),
        "N",
        "documents retrieved per question, at both parties (default: as in the settings)",
    ),
}
"""Options for the settings that are changed most often: which, and what help shows."""
ALONE = {"num_documents": ("device.num_documents",), "device_model": SHORT["model"][0]}
"""What some of them are for a device with notes alone, to which no option is to bring a cloud."""
QUESTION_SETTINGS = (
    *MODELS,
    "num_documents",
    "sampling",
    "decoding.mode",
    "decoding.placement",
    "decoding.pacing",
    "decoding.length_policy",
    "decoding.home",
    "cluster.runtime",
)
"""Settings that are options of commands that ask questions."""
OR_A_LIST = ", or a list of them"
"""End of a setting's meaning that does not suit an option, which is repeated instead."""

Command = Callable[..., int]


# ---- how texts are read --------------------------------------------------------------------------------------


def parse_filter(text: str) -> tuple[str, str, str]:
    """Party, key and value of "device:source=notes.md". Raises a usage error."""
    party, _, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if party not in set(PARTIES) or not key or not equals:
        raise BadParameter(f"must be PARTY:KEY=VALUE, such as device:source=notes.md (got {text!r})")
    return party, key, value


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of "HOST:PORT", "[::1]:7800", or "HOST". Raises a usage error."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (text.count(":") > 1 and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise BadParameter(f"must be HOST:PORT, such as 192.0.2.1:{default_port} (got {text!r})")
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
    Party, Argument(metavar="PARTY", help="device or cloud", show_default=False, show_choices=False)
]
AsJson = Annotated[bool, Option("--json", help="print one JSON object")]
Quiet = Annotated[bool, Option("--quiet", help="print only the answer")]
Seed = Annotated[
    int | None,
    Option(metavar="N", min=0, max=MAX_SEED, help="repeat an answer exactly (default: a new seed)"),
]
Filters = Annotated[
    list[Any] | None,
    Option(
        "--filter",
        metavar="PARTY:KEY=VALUE",
        parser=parse_filter,
        help="use only that party's documents with this metadata, such as device:source=notes.md; repeat it with "
        "another value to admit both, with another key to narrow further",
    ),
]
Join = Annotated[
    str | None,
    Option(
        metavar="LINK",
        envvar="TANDEM_JOIN_LINK",
        show_envvar=True,
        help="run the device here and join the cloud of this link, or of the file that holds it (`tandem cloud serve`)",
    ),
]


def find_settings(file: str | None) -> str | None:
    """The file of settings that counts: the one named, or that of this folder."""
    return CONFIG_NAME if file is None and Path(CONFIG_NAME).is_file() else file


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOptions:
    """The settings of a command. Those that are options of their own come in `overrides`."""

    config_file: Annotated[
        str | None,
        Option(
            "--config", metavar="FILE", help="settings (default: tandem.toml in this folder, if there is one)"
        ),
    ] = None
    overrides: Annotated[
        list[str] | None,
        Option("--set", metavar="K=V", help="one setting, as section.key=value; may be repeated"),
    ] = None

    def load(self, log: Callable[[str], None] | None = None, *more: str) -> Config:
        """The settings of a command line: --config, or tandem.toml in this folder; then --set, then `more` of that.

        log: receives the name of the file. Raises ConfigError.
        """
        from tandem.config.schema import Config

        file = find_settings(self.config_file)
        config = Config.load(file, [*(self.overrides or ()), *more])
        if file is not None and log is not None:
            log(f"settings: {file}")
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How much of one answer is printed."""

    show_sources: Annotated[
        bool, Option("--show-sources", help="print the passages that this side's model read")
    ] = False
    quiet: Quiet = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """How each question of a command is asked."""

    seed: Seed = None
    only: Annotated[
        Party | None,
        Option(metavar="PARTY", help="let the device or the cloud answer alone; nothing crosses the link"),
    ] = None
    filters: Filters = None

    def options(self) -> dict[str, Any]:
        """The options of `Tandem.query`, apart from the seed."""
        return {"only": self.only, **merge_filters(self.filters or ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Which device or cluster is asked."""

    address: Annotated[
        str | None,
        Option(
            metavar="HOST:PORT",
            help="ask this running cluster (default: the one that `tandem up` started here; without any, both parties "
            "run in this process)",
        ),
    ] = None
    join: Join = None
    fresh: Annotated[bool, Option("--fresh", help="start parties of its own, even where a cluster runs")] = (
        False
    )

    def __post_init__(self) -> None:
        """Raises a usage error for what excludes each other."""
        if self.join and (self.address or self.fresh):
            raise BadParameter("--join runs the device here; leave out --address and --fresh.")
        if self.address and self.fresh:
            raise BadParameter("--fresh starts parties of its own; leave out --address.")

    def open(self, config: Config, log: StageLog) -> Tandem:
        """Open the site that is named, in the settings, or the cluster that runs here; parties of our own if there is
        none.

        With --join, --fresh or the runtime "inline" they are always our own. Where Ray is not installed, "auto" looks
        for no cluster. Raises TandemError.
        """
        is_inline = config.cluster.runtime == "inline"
        if is_inline and self.address:
            raise ConfigError(
                f'--address names a running Ray cluster (got {self.address!r}), but the runtime is "inline"; leave out '
                "one of them."
            )
        from tandem.client.tandem import Tandem, find_runtime

        if self.join:
            return Tandem.join(self.join, config, progress=log)
        if is_inline or self.fresh:
            return Tandem.launch(config, progress=log)
        address = self.address
        if address is None and (config.cluster.runtime != "auto" or find_spec("ray") is not None):
            address = find_runtime(config).find_running(config, log)
        return (
            Tandem.connect(address, config, progress=log) if address else Tandem.launch(config, progress=log)
        )

    def open_to_ask(self, config: Config, log: StageLog) -> Answerer:
        """Open the device that `tandem device` runs here where nothing else is named; else as `open` does."""
        running = plugins.find("running", "device")
        is_named = self.join or self.fresh or self.address
        if is_named or config.is_federated or config.cluster.runtime == "inline" or not running.is_running():
            return self.open(config, log)
        device = running(config)
        log(f"device: process {device.pid} is running here (tandem device)")
        from tandem.config.schema import explain_ignored

        if ignored := explain_ignored(config, [(Party.DEVICE, device.settings)]):
            log(ignored)
        return cast("Answerer", device)


# ---- settings as options -------------------------------------------------------------------------------------


class SettingOption(NamedTuple):
    """An option that is another way to write some settings."""

    name: str  # of its parameter
    keys: tuple[str, ...]
    kind: Any  # of its parameter, as typer reads it

    def keys_for(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Those that count with the options of a command. Raises ConfigError."""
        from tandem.config.schema import Config

        if self.name not in ALONE or options.get("join"):
            return self.keys
        config = Config.load(find_settings(options.get("config_file")), options.get("overrides") or ())
        return ALONE[self.name] if config.is_alone else self.keys


def with_options(*names: str) -> Callable[[Command], Command]:
    """Give a command one option for each of these settings, which reach its `SettingsOptions` as if they came by --set;
    and for each parameter whose type is a dataclass, one option per field.

    names: of `SHORT`, "section.name", or "section" for all of a section.
    """
    added = list(_setting_options(names))

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        groups: dict[str, Any] = {
            each.name: each.annotation
            for each in signature.parameters.values()
            if is_dataclass(each.annotation)
        }

        @functools.wraps(command)
        def run(**options: Any) -> int:
            flags = dict[str, str]()
            try:
                for option in added:
                    if (value := options.pop(option.name, None)) is not None:
                        keys = option.keys_for(options)
                        text = as_toml(tuple(value)) if isinstance(value, list) else value
                        overrides = [f"{key}={text}" for key in keys]
                        options["overrides"] = [*(options.get("overrides") or ()), *overrides]
                        flags |= dict.fromkeys(keys, f"--{option.name.replace('_', '-')}")
                for name, group in groups.items():
                    own = {field.name for field in fields(group)} & set(options)
                    make: Any = group
                    options[name] = make(**{field: options.pop(field) for field in own})
                return command(**options)
            except SettingError as error:
                raise error.renamed(flags.get(error.name, error.name)) from None

        parameters = [
            *(spread for each in signature.parameters.values() for spread in _spread(each)),
            *(_parameter(option.name, None, option.kind) for option in added),
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return add


def _spread(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for field in fields(parameter.annotation):
        yield _parameter(field.name, field.default, hints[field.name])


def _parameter(name: str, default: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _setting_options(names: Iterable[str]) -> Iterator[SettingOption]:
    """The options of each setting; a field that is added to a section adds its option."""
    from tandem.config.files import walk
    from tandem.config.schema import Config

    for name in names:
        if name in SHORT:
            keys, metavar, meaning = SHORT[name]
            option = Option(metavar=metavar, help=meaning, show_default=False)
            yield SettingOption(name, keys, Annotated[str | None, option])
    for section, setting, _ in walk(Config()):
        if section in names or f"{section}.{setting.name}" in names:
            yield SettingOption(setting.name, (f"{section}.{setting.name}",), _option_of(setting))


def _option_of(setting: Setting) -> Any:
    is_list = setting.type is tuple
    default = f"{setting.default:g}" if isinstance(setting.default, int | float) else setting.default
    more = "; may be repeated" if is_list else f" (default: {default})" if default != "" else ""
    choices = f": {', '.join(setting.choices)}" if setting.choices else ""
    option = Option(
        metavar="TEXT" if is_list else "NAME" if setting.type is str else "N",
        help=f"{setting.meaning.removesuffix(OR_A_LIST)}{choices}{more}",
        show_default=False,
    )
    return Annotated[list[str] | None if is_list else str | None, option]

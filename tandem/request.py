"""A question and its options become the spec of a session, checked against the settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pydantic_core import PydanticSerializationError

from tandem.config import Config
from tandem.conversation import Message, MessageDict, read_history
from tandem.decoding import DecodingConfig, DecodingOptions
from tandem.errors import ConfigError, QueryError
from tandem.extensions import CodecConfig, is_extension
from tandem.nearest import nearest
from tandem.presets import KEY, settings_of_preset
from tandem.protocol.spec import SessionSpec
from tandem.questions import check_question
from tandem.sampling import SamplingOptions, SamplingParams
from tandem.topology import PARTIES, Party
from tandem.validation import Settings, change

if TYPE_CHECKING:
    from tandem.retrieval.tables import Filter

MAX_SPEC_BYTES = 4_000_000
"""Of a query as JSON; a message within a side holds 4 MiB."""
MAX_TIMEOUT_S = 1e9


class QueryOptions(SamplingOptions, DecodingOptions, total=False):
    """Options of one query; what is left out or None is as configured. Sampling: see `SamplingParams`."""

    preset: str | None
    """Settings of a paper by name, such as "dragon"; options that are given besides count before them."""
    sampling: SamplingParams | None
    """All sampling options at once, instead of the configured ones; those that are given singly replace its fields."""
    seed: int | None
    """64 bits, fresh if None. With the documents, models and codec it determines the answer."""
    timeout_s: float | None
    """Limit for the whole answer, in seconds; `config.cluster.query_timeout_s` if None."""
    only: Literal["device", "cloud"] | Party | None
    """"device" or "cloud": this party answers by itself and nothing crosses the link."""
    device_filter: Filter | None
    """Metadata that the device's documents must have, as {"source": "a.txt", "page": [1, 2]}; it stays there."""
    cloud_filter: Filter | None
    """The same for the cloud's documents."""
    num_documents: int | Mapping[str, int] | None
    """Documents to retrieve: at each party, or by party, as {"device": 2}."""
    history: Sequence[Message | MessageDict] | None
    """Earlier turns, as {"role": "user" or "assistant", "content": text}: context for the models, not for retrieval."""
    show_drafts: bool
    """Also yield a ProvisionalEvent for each draft as soon as it is there, and a RetractEvent if it is void."""


RENAMED_OPTIONS = {"alone": "only", "provisional": "show_drafts"}
"""Options of version 0.1 and what they are called today."""


OPTION_CHECKS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("sampling", "a SamplingParams", lambda value: isinstance(value, SamplingParams)),
    ("seed", "a whole number from 0 to 2^64 - 1", lambda value: type(value) is int and 0 <= value < 1 << 64),
    ("timeout_s", "a number of seconds above 0, at most 1e9", lambda value: _is_duration(value)),
    ("show_drafts", "true or false", lambda value: isinstance(value, bool)),
)
"""Options that are no settings: name, what they must be in words, and the check."""


def spec_of(config: Config) -> SessionSpec:
    """The spec with everything that `config` determines; `build_spec` fills in the rest."""
    decoding, weights, link = config.decoding, config.weights, config.link
    return SessionSpec(
        session=0,
        query="",
        seed=0,
        sampling=config.sampling,
        draft_rule=decoding.draft_rule,
        placement=decoding.placement,
        synchronous=decoding.synchronous,
        device_documents=config.device.num_documents,
        cloud_documents=config.cloud.num_documents,
        relevance_scale=weights.scale,
        weight_interval=weights.interval,
        weight_lag=weights.lag,
        weight_momentum=weights.momentum,
        max_window=decoding.max_window,
        mode=decoding.mode,
        max_proposal=decoding.max_proposal,
        pacing=decoding.pacing,
        on_peer_loss=link.on_peer_loss,
        peer_loss_margin_s=link.peer_loss_margin_s,
        race_depth=config.codec.depth if config.codec.name == "race_list" else 0,
    )


def build_spec(
    config: Config,
    described: Mapping[Party, Mapping[str, Any]],
    question: str,
    **options: Unpack[QueryOptions],
) -> SessionSpec:
    """The spec of a new session. described: what each party's actors reported. Raises QueryError or ConfigError."""
    check_question(question)
    _check_options(options)
    _check_codec(options.get("preset"), described)
    only, seed = options.get("only"), options.get("seed")
    spec = replace(
        spec_of(_configure(config, options)),
        session=secrets.randbits(32),
        query=question,
        seed=secrets.randbits(64) if seed is None else seed,
        device_decode_line=tuple(described[Party.DEVICE]["decode_line"]),
        cloud_decode_line=tuple(described[Party.CLOUD]["decode_line"]),
        only=None if only is None else find_party(only),
        device_filter=_filter("device_filter", options.get("device_filter")),
        cloud_filter=_filter("cloud_filter", options.get("cloud_filter")),
        history=read_history(options.get("history")),
        show_drafts=bool(options.get("show_drafts")),
    )
    _check_policy(spec, described)
    _check_alone(spec)
    _check_size(spec)
    home = described[spec.home]
    return replace(
        spec,
        eos_token_ids=tuple(home["eos_token_ids"]),
        vocab_size=home.get("vocab_size", spec.vocab_size),
    )


def _check_options(options: Mapping[str, Any]) -> None:
    """Names of all, and values of those that are no settings. Raises ConfigError."""
    _check_names(options)
    for name, expected, is_right in OPTION_CHECKS:
        value = options.get(name)
        if value is not None and not is_right(value):
            raise ConfigError(
                f"The option {name} must be {expected}, but it is {value!r:.100}; correct it or omit it."
            )


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in RENAMED_OPTIONS:
            raise ConfigError(f"The option {name} is now {RENAMED_OPTIONS[name]}; rename it.")
        if name not in QueryOptions.__annotations__:
            near = nearest(name, QueryOptions.__annotations__)
            raise ConfigError(f"A query has no option {name!r}; the nearest is {near!r}.")


def _configure(config: Config, options: Mapping[str, Any]) -> Config:
    """The settings, with those of one query."""
    parties: dict[str, Any] = {
        party: change(config.party(party), {"num_documents": count}, party)
        for party, count in _counts(options.get("num_documents")).items()
    }
    preset = {} if options.get(KEY) is None else settings_of_preset(options[KEY])
    sampling = {**preset.get("sampling", {}), **_changes(SamplingParams, options)}
    decoding = {**preset.get("decoding", {}), **_changes(DecodingConfig, options)}
    return replace(
        config,
        sampling=change(options.get("sampling") or config.sampling, sampling, "sampling"),
        decoding=change(config.decoding, decoding, "decoding"),
        **parties,
    )


def _counts(num_documents: object) -> dict[Party, Any]:
    """How many documents each party retrieves, where a query says so. Raises ConfigError for a party that is none."""
    if num_documents is None:
        return {}
    if isinstance(num_documents, Mapping):
        return {find_party(name): count for name, count in num_documents.items()}
    return dict.fromkeys(PARTIES, num_documents)


def _changes(group: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(group)}
    return {name: value for name, value in options.items() if name in names and value is not None}


def find_party(name: str) -> Party:
    """The party of that name. Raises ConfigError."""
    try:
        return Party(name)
    except ValueError:
        raise ConfigError(f"A party is device or cloud, not {name!r}; name one of the two.") from None


def _filter(name: str, metadata: Filter | None) -> str:
    """A filter as it travels: a JSON object, or empty. Raises QueryError."""
    if metadata is None:
        return ""
    from tandem.retrieval.tables import values_of

    scalar = (str, int, float, bool)
    is_filter = isinstance(metadata, Mapping) and all(
        isinstance(key, str) and all(isinstance(value, scalar) for value in values_of(wanted))
        for key, wanted in metadata.items()
    )
    if not is_filter:
        raise QueryError(
            f'{name} is metadata as {{"source": "a.txt", "page": [1, 2]}}, this is {metadata!r:.100}; '
            "give texts, numbers or lists of them."
        )
    values = {
        key: wanted if isinstance(wanted, scalar) else values_of(wanted) for key, wanted in metadata.items()
    }
    try:
        return json.dumps(values) if values else ""
    except ValueError as error:  # of a whole number with thousands of digits
        raise QueryError(
            f"{name} holds a number that cannot be written: {error}; give a smaller one."
        ) from None


def _check_size(spec: SessionSpec) -> None:
    """The question, its history and its filters must fit a message."""
    try:
        num_bytes = len(spec.to_json().encode())
    except (PydanticSerializationError, UnicodeEncodeError):
        raise QueryError(
            "The question and its filters must be Unicode, but they hold half a surrogate pair; remove that character."
        ) from None
    if num_bytes > MAX_SPEC_BYTES:
        raise QueryError(
            f"A query with its filters travels as at most {MAX_SPEC_BYTES} bytes, this one has {num_bytes}; "
            "shorten the question or its history, or give fewer values."
        )


def _check_policy(spec: SessionSpec, described: Mapping[Party, Mapping[str, Any]]) -> None:
    """A policy of one's own is one that both parties have loaded; `described` tells which."""
    for party in spec.parties if is_extension(spec.placement) else ():
        loaded = described[party].get("policy", "")
        if loaded.partition("(")[0] != spec.placement:
            raise ConfigError(
                f"The {party} has not loaded the placement policy {spec.placement!r} (it has {loaded or 'none'}); name "
                "it as decoding.placement in the settings of both parties and start them again."
            )


def _check_codec(preset: str | None, described: Mapping[Party, Mapping[str, Any]]) -> None:
    """The codec of a preset is the one that the parties have loaded: a question cannot change it."""
    if preset is None or "codec" not in settings_of_preset(preset):
        return
    from tandem.codecs import codec_of

    wanted = codec_of(CodecConfig(**settings_of_preset(preset)["codec"])).fingerprint()
    loaded = described[Party.DEVICE].get("codec", "")
    if loaded != wanted:
        raise ConfigError(
            f"The preset {preset!r} needs the codec {wanted}, but the parties have loaded {loaded or 'none'}; start "
            f"them again with preset={preset}."
        )


def _check_alone(spec: SessionSpec) -> None:
    """A party that is not asked has no documents to filter."""
    for party in PARTIES:
        if spec.filter(party) and party not in spec.parties:
            raise QueryError(
                f"{party}_filter is for documents of the {party}, but the {spec.only} was asked alone; leave it out."
            )


def _is_duration(value: Any) -> bool:
    """Finite and above 0; a truth value is no number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_TIMEOUT_S

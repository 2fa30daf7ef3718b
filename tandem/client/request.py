"""A question and its options become the spec of a session, checked against the settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Unpack

from pydantic_core import PydanticSerializationError

from tandem.client.batch import check_question
from tandem.codecs.base import MAX_VOCAB
from tandem.config.checks import S, Settings, change
from tandem.config.extensions import CodecConfig, is_extension
from tandem.config.parties import shares_of
from tandem.config.presets import KEY, settings_of_preset
from tandem.config.sampling import GRAMMARS, SamplingOptions, SamplingParams
from tandem.config.schema import Config, DecodingConfig, DecodingOptions, LinkConfig, OnPeerLoss
from tandem.conversation import Message, MessageDict, read_history
from tandem.errors import Code, ConfigError, QueryError, install_line, nearest
from tandem.modes.dual import Dual, adds_nothing
from tandem.modes.query import MAX_BIAS, MAX_BIASES, MAX_GRAMMAR
from tandem.modes.query import MAX_TOP_LOGPROBS as MAX_TOP_LOGPROBS
from tandem.modes.spec import SessionSpec
from tandem.topology import PARTIES, Party, as_party, at_start, in_words

if TYPE_CHECKING:
    from tandem.retrieval.store import Filter


# ---- What a question may only use if its parties have loaded it --------------------------------------------


def check_codec(preset: str | None, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """The codec of a preset is the one that the parties report: a question cannot change it. Raises ConfigError."""
    if preset is None or "codec" not in settings_of_preset(preset):
        return
    from tandem.codecs import codec_of

    wanted = codec_of(CodecConfig(**settings_of_preset(preset)["codec"])).fingerprint()
    loaded = next(iter(described.values())).get("codec", "")
    if loaded != wanted:
        raise ConfigError(
            f"The preset {preset!r} needs the codec {wanted}, but the parties have loaded {loaded or 'none'}; start "
            f"them again with preset={preset}.",
            option="preset",
        )


def _check_placement(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """A custom policy is one that both parties have loaded; `described` tells which."""
    placement = spec.decoding.placement
    for party in spec.parties if is_extension(placement) else ():
        loaded = described[party].get("policy", "")
        if loaded.partition("(")[0] != placement:
            raise ConfigError(
                f"The {party} has not loaded the placement policy {placement!r} (it has {loaded or 'none'}); name "
                "it as decoding.placement in the settings of both parties and start them again.",
                option="placement",
            )


def _check_length_policy(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """A custom length policy is the one that the drafter has loaded."""
    drafter = spec.roles.drafters[0]
    is_needed = spec.rules.adapts_lengths(drafter) and is_extension(spec.decoding.length_policy)
    loaded = described[drafter].get("length_policy", "") if is_needed else ""
    if is_needed and loaded != spec.decoding.length_policy:
        raise ConfigError(
            f"{at_start(drafter)} has not loaded the length policy {spec.decoding.length_policy!r} "
            f"(it has {loaded or 'none'}); "
            "name it as decoding.length_policy in its settings and start it again.",
            option="length_policy",
        )


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
    day: str | None
    """What a chat template takes for today, if it writes the date, as "2026-11-25"; today if None."""
    timeout_s: float | None
    """Limit for the whole answer, in seconds; `config.cluster.query_timeout_s` if None."""
    only: str | None
    """"device", "cloud" or another party of the cluster: it answers alone and nothing crosses the link."""
    device_filter: Filter | None
    """Metadata that the device's documents must have, as {"source": "a.txt", "page": [1, 2]}; it stays there."""
    cloud_filter: Filter | None
    """The same for the cloud's documents."""
    num_documents: int | Mapping[str, int] | None
    """Documents to retrieve: at each party that has an index, or by party, as {"device": 2}."""
    history: Sequence[Message | MessageDict] | None
    """Earlier turns, as {"role": "user" or "assistant", "content": text}."""
    on_peer_loss: OnPeerLoss | None
    """What the device does without the cloud: "continue", "wait" or "fail"."""
    show_drafts: bool
    """Also yield a ProvisionalEvent for each draft as soon as it is there, and a RetractEvent if it is void."""
    system_prompt: str | None
    """Of this query, at every party; empty: none. As each party has it if None, whose stored caches serve that only."""
    logit_bias: Mapping[int, float] | None
    """Token id -> what is added to its logit, -100 to 100; each party does so before it mixes or draws."""
    grammar: Mapping[str, Any] | None
    """What the answer follows: {"json_schema": schema}, {"regex": text} or {"lark": text}; extra [grammar]."""
    num_logprobs: int | None
    """0 to 20: each TokenEvent has its log probability in the target, and those of so many likeliest tokens."""


def _is_day(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_duration(value: Any) -> bool:
    """Finite and above 0; a truth value is no number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_TIMEOUT_S


def _is_bias(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= MAX_BIASES
        and all(type(token) is int and 0 <= token < MAX_VOCAB for token in value)
        and all(type(bias) in (int, float) and abs(bias) <= MAX_BIAS for bias in value.values())
    )


def _is_grammar(value: Any) -> bool:
    if not (isinstance(value, Mapping) and len(value) == 1):
        return False
    ((kind, grammar),) = value.items()
    if kind == "json_schema":
        return isinstance(grammar, Mapping)
    return kind in GRAMMARS and isinstance(grammar, str) and bool(grammar)


OPTION_CHECKS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("sampling", "a SamplingParams", lambda value: isinstance(value, SamplingParams)),
    ("seed", "a whole number from 0 to 2^64 - 1", lambda value: type(value) is int and 0 <= value < 1 << 64),
    ("day", "a date such as 2026-11-25", _is_day),
    ("timeout_s", "a number of seconds above 0, at most 1e9", _is_duration),
    ("show_drafts", "true or false", lambda value: isinstance(value, bool)),
    ("system_prompt", "a text", lambda value: isinstance(value, str)),
    (
        "logit_bias",
        f"a mapping of at most {MAX_BIASES} token ids to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}",
        _is_bias,
    ),
    ("grammar", 'one of {"json_schema": object}, {"regex": text} and {"lark": text}', _is_grammar),
    (
        "num_logprobs",
        f"a whole number from 0 to {MAX_TOP_LOGPROBS}",
        lambda value: type(value) is int and 0 <= value <= MAX_TOP_LOGPROBS,
    ),
)
"""Options that are no settings: name, what they must be in words, and the check."""


def spec_of(config: Config) -> SessionSpec:
    """The spec with everything that `config` determines; `build_spec` fills in the rest."""
    config = config.with_names()
    weights, link = config.weights, config.link
    return SessionSpec(
        session=0,
        query="",
        seed=0,
        sampling=config.sampling,
        decoding=config.decoding,
        documents={party: config.party(party).num_documents for party in config.parties},
        relevance_scale=weights.scale,
        question_weight=weights.question,
        evidence_weight=weights.evidence,
        evidence_memory=weights.memory,
        max_peer_share=_peer_share(config),
        layouts={
            name: layout for name in config.parties if (layout := config.party(name).documents) != "rows"
        },
        workers=tuple(config.workers),
        weights=shares_of(config.workers),
        on_peer_loss=link.on_peer_loss,
        peer_loss_margin_s=link.peer_loss_margin_s,
        peer_stall_s=link.peer_stall_s,
        race_depth=config.codec.race_depth,
    )


PRIVATE_PEER_SHARE = 0.5
"""Most that the cloud counts where the device's weight says nothing of its documents."""


def _peer_share(config: Config) -> float:
    is_private = config.device.privacy > 0 and config.device.num_documents > 0
    return min(config.weights.max_peer_share, PRIVATE_PEER_SHARE if is_private else 1.0)


def build_spec(
    config: Config,
    described: Mapping[Any, Mapping[str, Any]],
    question: str,
    **options: Unpack[QueryOptions],
) -> SessionSpec:
    """The spec of a new session. described: what each party's actors reported. Raises QueryError or ConfigError."""
    check_question(question)
    _check_options(options)
    check_codec(options.get("preset"), described)
    seed = options.get("seed")
    config = _configure(config, options)
    only = options.get("only") or _answers_alone(config, described, options)
    spec = replace(
        spec_of(config),
        session=secrets.randbits(32),
        query=question,
        seed=secrets.randbits(64) if seed is None else seed,
        device_decode_line=_decode_line(described, Party.DEVICE),
        cloud_decode_line=_decode_line(described, Party.CLOUD),
        only=None if only is None else find_party(only, config.parties, "only"),
        device_filter=_filter("device_filter", options.get("device_filter")),
        cloud_filter=_filter("cloud_filter", options.get("cloud_filter")),
        history=read_history(options.get("history")),
        show_drafts=bool(options.get("show_drafts")),
        num_logprobs=options.get("num_logprobs"),
        system_prompt=options.get("system_prompt"),
        logit_bias=tuple((token, float(bias)) for token, bias in (options.get("logit_bias") or {}).items()),
        grammar=_write_grammar(options.get("grammar")),
    )
    _check_grammar(spec, described)
    _check_context(spec, described)
    _check_placement(spec, described)
    _check_length_policy(spec, described)
    _check_filters(spec)
    _check_size(spec)
    home, loaded = described[spec.home], [described.get(party, {}) for party in spec.parties]
    vocab_size = min(known.get("vocab_size", spec.vocab_size) for known in loaded)  # what all of them have
    spec = replace(
        spec,
        eos_token_ids=tuple(token for token in home["eos_token_ids"] if token < vocab_size),
        vocab_size=vocab_size,
        day=_day(options.get("day"), loaded),
        weights_fingerprints={
            party: found
            for party in spec.parties
            if (found := described.get(party, {}).get("weights_fingerprint", "")) and party != spec.home
        },
        has_several_models=have_several_models(described, spec),
        race_depth=home.get("race_depth", 0) if spec.race_depth else 0,  # of the codec that is loaded there
    )
    spec.rules.check_lottery()
    spec.rules.check_logprobs()
    return spec


def _answers_alone(
    config: Config, described: Mapping[Any, Mapping[str, Any]], options: Mapping[str, Any]
) -> str | None:
    """The device where the cloud's vote would add nothing, unless the query names mode or placement."""
    is_named = any(options.get(name) for name in ("mode", "placement", "cloud_filter"))
    if is_named or config.decoding.mode != Dual.name or is_extension(config.decoding.placement):
        return None
    return Party.DEVICE if adds_nothing(described, spec_of(config).num_documents(Party.CLOUD)) else None


NOTHING_TO_ADD = "The cloud has no documents, and the model of the device, which answered by itself."


def notes_on(spec: SessionSpec, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What is said beside an answer of what `build_spec` chose for the query with these options."""
    return (NOTHING_TO_ADD,) if spec.only and not options.get("only") else ()


def _check_options(options: Mapping[str, Any]) -> None:
    """Names of all, and values of those that are no settings. Raises ConfigError."""
    for name in options:
        if name not in QueryOptions.__annotations__:
            near = nearest(name, QueryOptions.__annotations__)
            raise ConfigError(f"A query has no option {name!r}; the nearest is {near!r}.", option=name)
    for name, expected, is_right in OPTION_CHECKS:
        value = options.get(name)
        if value is not None and not is_right(value):
            raise ConfigError(
                f"The option {name} must be {expected}, but it is {value!r:.100}; correct it or omit it.",
                option=name,
            )


def _configure(config: Config, options: Mapping[str, Any]) -> Config:
    """The settings, with those of one query."""
    parties: dict[str, Any] = {
        party: _change(config.party(party), {"num_documents": count}, party)
        for party, count in _counts(config, options.get("num_documents")).items()
    }
    workers = {name: parties.pop(name, worker) for name, worker in config.workers.items()}
    preset = {} if options.get(KEY) is None else settings_of_preset(options[KEY])
    sampling = {**preset.get("sampling", {}), **_changes(SamplingParams, options)}
    decoding = {**preset.get("decoding", {}), **_changes(DecodingConfig, options)}
    codec = CodecConfig(**preset["codec"]) if "codec" in preset else config.codec
    return replace(
        config,
        sampling=_change(options.get("sampling") or config.sampling, sampling, "sampling"),
        decoding=_change(config.decoding, decoding, "decoding"),
        link=_change(config.link, _changes(LinkConfig, options), "link"),
        weights=change(config.weights, preset.get("weights", {}), "weights"),
        codec=codec,
        workers=workers,
        **parties,
    )


def _counts(config: Config, num_documents: object) -> dict[str, Any]:
    """How many documents each party retrieves, where a query says so. Raises ConfigError for a party that is none.

    One number is for every party that has an index.
    """
    if num_documents is None:
        return {}
    if isinstance(num_documents, Mapping):
        return {
            find_party(name, config.parties, "num_documents"): count for name, count in num_documents.items()
        }
    return dict.fromkeys(config.holders, num_documents)


def _change(group: S, changes: Mapping[str, Any], section: str) -> S:
    """As `change`; of settings that contradict each other the first that the query names is at fault."""
    try:
        return change(group, changes, section)
    except ConfigError as error:
        error.option = error.option or next(iter(changes), None)
        raise


def _changes(group: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(group)}
    return {name: value for name, value in options.items() if name in names and value is not None}


def find_party(name: str, parties: Sequence[str] = PARTIES, option: str | None = None) -> str:
    """The party of that name, out of these. option: of a query, which names it. Raises ConfigError."""
    if name in parties:
        return as_party(name)
    *others, last = parties
    count = "the two" if len(parties) == 2 else "them"
    raise ConfigError(
        f"A party is {', '.join(others)} or {last}, not {name!r}; name one of {count}.", option=option
    )


def have_several_models(described: Mapping[Any, Mapping[str, Any]], spec: SessionSpec) -> bool:
    """Whether voters that weigh by their documents have different models, as far as is known."""
    models = {described.get(voter, {}).get("weights_fingerprint") for voter in spec.roles.voters}
    return spec.roles.weighs_by_documents and (len(models) > 1 or None in models)


def _day(day: str | None, loaded: Sequence[Mapping[str, Any]]) -> str:
    """The query's, today if none is given; empty where no chat template of these parties writes it."""
    return (day or date.today().isoformat()) if any(known.get("writes_day") for known in loaded) else ""


def _decode_line(described: Mapping[Any, Mapping[str, Any]], party: Party) -> tuple[float, ...]:
    """The offline profile of a party; empty where it takes no part."""
    return tuple(described[party]["decode_line"]) if party in described else ()


def _filter(name: str, metadata: Filter | None) -> str:
    """A filter as it travels: a JSON object, or empty. Raises QueryError."""
    if metadata is None:
        return ""
    from tandem.retrieval.store import values_of

    scalar = (str, int, float, bool)
    is_filter = isinstance(metadata, Mapping) and all(
        isinstance(key, str) and all(isinstance(value, scalar) for value in values_of(wanted))
        for key, wanted in metadata.items()
    )
    if not is_filter:
        raise QueryError(
            f'{name} is metadata as {{"source": "a.txt", "page": [1, 2]}}, this is {metadata!r:.100}; '
            "give texts, numbers or lists of them.",
            option=name,
        )
    values = {
        key: wanted if isinstance(wanted, scalar) else values_of(wanted) for key, wanted in metadata.items()
    }
    try:
        json.dumps(values, ensure_ascii=False).encode()
        return json.dumps(values) if values else ""
    except UnicodeEncodeError:
        raise QueryError(
            f"{name} must be Unicode, but it holds half a surrogate pair; remove that character.", option=name
        ) from None
    except ValueError:  # of a whole number with thousands of digits
        raise QueryError(
            f"{name} holds a whole number with thousands of digits; give a smaller one.", option=name
        ) from None


def _write_grammar(grammar: Mapping[str, Any] | None) -> str:
    """A grammar as it travels: JSON, or empty. Raises QueryError."""
    if grammar is None:
        return ""
    try:
        written = json.dumps(grammar)
    except (TypeError, ValueError, RecursionError):
        raise QueryError(
            "A grammar must be JSON, but this one holds other values, or is nested without end; give a plain one.",
            option="grammar",
        ) from None
    if len(written) > MAX_GRAMMAR:
        raise QueryError(
            f"A grammar has at most {MAX_GRAMMAR} characters as JSON, but this one has {len(written)}; shorten it.",
            option="grammar",
        )
    return written


def _check_grammar(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """All parties must have llguidance. Whether it can follow the grammar they find out, within limits."""
    for party in spec.parties if spec.grammar else ():
        if not described.get(party, {}).get("has_grammars"):
            raise QueryError(
                f"An answer that follows a grammar needs llguidance at every party, but {in_words(party)} does not "
                f"have it; run `{install_line('grammar')}` there and start it again, or leave the grammar out.",
                option="grammar",
            )


def _check_context(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """Refuse what fits no context before a model works on it: no token has more bytes than the longest."""
    lengths = [described.get(party, {}).get("context_length") for party in spec.parties]
    context = min((length for length in lengths if length is not None), default=None)
    longest = described[spec.home].get("longest_token")
    if context is None or longest is None or spec.num_bytes <= context * longest:
        return
    what, remedy = ("conversation", "begin a new one") if spec.history else ("question", "shorten it")
    raise QueryError(
        f"The {what} of {spec.num_bytes} bytes does not fit the model's context of {context} tokens, which have at "
        f"most {context * longest} bytes; {remedy}, or use a model with a longer context.",
        code=Code.TOO_LONG,
        option="question",
    )


def _check_size(spec: SessionSpec) -> None:
    """The question, its history and its filters must fit a message."""
    try:
        num_bytes = len(spec.to_json().encode())
    except (PydanticSerializationError, UnicodeEncodeError):
        raise QueryError(
            "The question and its filters must be Unicode, but they hold half a surrogate pair; remove that character.",
            option="question",
        ) from None
    if num_bytes > MAX_SPEC_BYTES:
        raise QueryError(
            f"A query with its filters travels as at most {MAX_SPEC_BYTES} bytes, this one has {num_bytes}; "
            "shorten the question or its history, or give fewer values.",
            code=Code.TOO_LONG,
            option="question",
        )


def _check_filters(spec: SessionSpec) -> None:
    """A party that is not asked has no documents to filter."""
    for party in PARTIES:
        if spec.filter(party) and party not in spec.parties:
            names = ", ".join(spec.parties)
            asked = f"{in_words(spec.only)} was asked alone" if spec.only else f"{names} are asked"
            sentence = f"{party}_filter is for documents of the {party}, but {asked}; leave it out."
            raise QueryError(sentence, option=f"{party}_filter")

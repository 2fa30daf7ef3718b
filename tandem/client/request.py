"""A question and its options become the spec of a session, checked against the settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import Annotated, Any, Unpack

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError

from tandem.client.ask import check_question
from tandem.codecs.base import MAX_VOCAB
from tandem.config.checks import STRICT, S, Settings, change, explain
from tandem.config.extensions import CodecConfig, is_extension
from tandem.config.files import KEY, settings_of_preset
from tandem.config.parties import NO_INDEX, shares_of
from tandem.config.schema import (
    GRAMMARS,
    Config,
    DecodingConfig,
    DecodingOptions,
    LinkConfig,
    OnPeerLoss,
    SamplingOptions,
    SamplingParams,
)
from tandem.conversation import Message, MessageDict, read_history
from tandem.errors import Code, ConfigError, QueryError, install_line
from tandem.modes import SessionSpec
from tandem.modes.dual import Dual, adds_nothing
from tandem.modes.query import MAX_BIAS, MAX_BIASES, MAX_GRAMMAR
from tandem.modes.query import MAX_TOP_LOGPROBS as MAX_TOP_LOGPROBS
from tandem.topology import PARTIES, Party, as_party, at_start, in_words

# ---- What a question may only use if its parties have loaded it --------------------------------------------


def check_codec(preset: str | None, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """The codec of a preset is the one that the parties report: a question cannot change it. Raises ConfigError."""
    if preset is None or "codec" not in settings_of_preset(preset):
        return
    from tandem.codecs import codec_of

    needed = codec_of(CodecConfig(**settings_of_preset(preset)["codec"])).fingerprint()
    loaded = next(iter(described.values())).get("codec", "")
    if loaded != needed:
        raise ConfigError(
            f"The preset {preset!r} needs the codec {needed}, but the parties have loaded {loaded or 'none'}; start "
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
    """A length policy is the one that the drafter has loaded."""
    drafter = spec.roles.drafters[0]
    is_needed = spec.rules.proposes(drafter) and is_extension(spec.decoding.length_policy)
    loaded = described[drafter].get("length_policy", "") if is_needed else ""
    if is_needed and loaded != spec.decoding.length_policy:
        raise ConfigError(
            f"{at_start(drafter)} has not loaded the length policy {spec.decoding.length_policy!r} "
            f"(it has {loaded or 'none'}); "
            "name it as decoding.length_policy in its settings and start it again.",
            option="length_policy",
        )


MAX_SPEC_BYTES = 4_000_000
"""Most bytes of a query as JSON; a message within a side holds 4 MiB."""
MAX_TIMEOUT_S = 1e9


def _check_day(day: str) -> str:
    try:
        is_day = date.fromisoformat(day).isoformat() == day
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError("must be a date such as 2026-11-25")
    return day


def _write_filter(metadata: Mapping[str, Any]) -> str:
    """A filter as it travels: a JSON object, or empty."""
    from tandem.retrieval.store import values_of

    scalar = (str, int, float, bool)
    values = {
        key: value if isinstance(value, scalar) else values_of(value) for key, value in metadata.items()
    }
    if not all(isinstance(each, scalar) for value in values.values() for each in values_of(value)):
        raise ValueError(
            'must hold texts, numbers or lists of them, as in {"source": "a.txt", "page": [1, 2]}'
        )
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except ValueError:
        raise ValueError("must be Unicode, without numbers of thousands of digits") from None
    return json.dumps(values) if values else ""


def _write_grammar(grammar: Mapping[str, Any]) -> str:
    ((kind, rules),) = grammar.items() if len(grammar) == 1 else (("", None),)
    is_text = kind in GRAMMARS and isinstance(rules, str) and rules
    if not (isinstance(rules, Mapping) if kind == "json_schema" else is_text):
        raise ValueError('must be one of {"json_schema": object}, {"regex": text} and {"lark": text}')
    try:
        written = json.dumps(grammar)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("must be plain JSON, nested with an end") from None
    if len(written) > MAX_GRAMMAR:
        raise ValueError(f"must have at most {MAX_GRAMMAR} characters as JSON, not {len(written)}")
    return written


Biased = Annotated[int, Field(strict=False, ge=0, lt=MAX_VOCAB)]
"""A token id, which JSON writes as a text where it is a key."""
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
Metadata = Annotated[Mapping[str, Any], AfterValidator(_write_filter)]


@with_config(STRICT)
class QueryOptions(SamplingOptions, DecodingOptions, total=False):
    """Options of one query; what is left out or None is as configured. Sampling: see `SamplingParams`."""

    preset: str | None
    """Settings of a paper by name, such as "dragon"; options that are given besides count before them."""
    sampling: SamplingParams | None
    """All sampling options at once, instead of the configured ones; those that are given singly replace its fields."""
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None
    """64 bits, fresh if None. With the documents, models and codec it determines the answer."""
    day: Annotated[str, AfterValidator(_check_day)] | None
    """The date that chat templates write, if they do, as "2026-11-25"; today if None."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None
    """Longest silence, in seconds; then it ends with what it has. `config.cluster.query_timeout_s` if None."""
    only: str | None
    """"device", "cloud" or another party of the cluster: it answers alone and nothing crosses the link."""
    device_filter: Metadata | None
    """Metadata that the device's documents must have, as {"source": "a.txt", "page": [1, 2]}; it stays there."""
    cloud_filter: Metadata | None
    """The same for the cloud's documents."""
    num_documents: int | Mapping[str, int] | None
    """Documents to retrieve: at each party that has an index, or by party, as {"device": 2}."""
    history: Annotated[Sequence[Message | MessageDict], PlainValidator(read_history)] | None
    """Earlier turns, as {"role": "user" or "assistant", "content": text}."""
    on_peer_loss: OnPeerLoss | None
    """The device without its cloud: "continue", "wait" or "fail"."""
    show_drafts: bool
    """Also yield a ProvisionalEvent for each draft as soon as it is there, and a RetractEvent if it is void."""
    system_prompt: str | None
    """The system prompt at every party; empty: none. If None each has its own, which its stored caches are for."""
    logit_bias: Annotated[Mapping[Biased, Bias], Field(max_length=MAX_BIASES)] | None
    """Token id -> what is added to its logit, -100 to 100; each party does so before it mixes or draws."""
    grammar: Annotated[Mapping[str, Any], AfterValidator(_write_grammar)] | None
    """A grammar of the answer: {"json_schema": schema}, {"regex": text} or {"lark": text}; extra [grammar]."""
    num_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None
    """0 to 20: each TokenEvent has its log probability in the target, and those of so many likeliest tokens."""


OPTIONS = dict.fromkeys(QueryOptions.__annotations__)
"""Every option of a query; none has a default of its own."""
_CHECKED = TypeAdapter(QueryOptions)


MEANT: Mapping[str, tuple[int, dict[str, Any]]] = {
    "seed": (-1, {"seed": None}),
    "max_new_tokens": (-1, {"max_new_tokens": None}),
    "top_k": (-1, {"top_k": 0}),
    "top_p": (0, {"top_p": None, "temperature": 0}),
}
"""Options -> a value by which clients say "any", "no limit", "all" or "the likeliest", and what it is here."""


def read_clients_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a client of OpenAI, llama.cpp or vLLM sends, as those of a query."""
    read = {name: value for name, value in options.items() if value is not None}
    for name, (sent, meant) in MEANT.items():
        if type(read.get(name)) in (int, float) and read[name] == sent:
            read |= meant
    seed, stop = read.get("seed"), read.get("stop")
    if type(seed) is int and -(1 << 63) <= seed < 0:
        read["seed"] = seed % (1 << 64)
    if isinstance(stop, str | list):
        read["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text != ""]
    return {name: value for name, value in read.items() if value is not None}


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, filters, grammar and history as they travel. Raises SettingError and QueryError."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return {**_CHECKED.validate_python(given)}
    except ValidationError as error:
        raise explain(error, OPTIONS) from None


PRIVATE_PEER_SHARE = 0.5
"""Most that the cloud counts where the device's weight says nothing of its documents."""


def spec_of(config: Config) -> SessionSpec:
    """The spec with everything that `config` determines; `build_spec` fills in the rest."""
    config = config.with_names()
    weights, link = config.weights, config.link
    is_private = config.device.privacy > 0 and config.device.num_documents > 0
    return SessionSpec(
        session=0,
        query="",
        seed=0,
        sampling=config.sampling,
        decoding=config.decoding,
        documents={party: config.party(party).num_documents for party in config.parties},
        relevance_scale=config.score_scale,
        question_weight=weights.question,
        evidence_weight=weights.evidence,
        evidence_memory=weights.memory,
        max_peer_share=min(weights.max_peer_share, PRIVATE_PEER_SHARE if is_private else 1.0),
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


def build_spec(
    config: Config, described: Mapping[Any, Mapping[str, Any]], question: str, **options: Unpack[QueryOptions]
) -> SessionSpec:
    """The spec of a new session. described: what each party's actors reported. Raises QueryError or ConfigError."""
    check_question(question)
    given = check_options(options)
    check_codec(given.get("preset"), described)
    config = _configure(config, given)
    only = given.get("only") or _answers_alone(config, described, given)
    decode_lines = {party: tuple(about.get("decode_line", ())) for party, about in described.items()}
    spec = replace(
        spec_of(config),
        session=secrets.randbits(32),
        query=question,
        seed=given.get("seed", secrets.randbits(64)),
        device_decode_line=decode_lines.get(Party.DEVICE, ()),
        cloud_decode_line=decode_lines.get(Party.CLOUD, ()),
        only=None if only is None else _find_party(only, config.parties, "only"),
        device_filter=given.get("device_filter", ""),
        cloud_filter=given.get("cloud_filter", ""),
        history=given.get("history", ()),
        show_drafts=given.get("show_drafts", False),
        num_logprobs=given.get("num_logprobs"),
        system_prompt=given.get("system_prompt"),
        logit_bias=tuple(given.get("logit_bias", {}).items()),
        grammar=given.get("grammar", ""),
    )
    _check_grammar(spec, described)
    _check_context(spec, described)
    _check_placement(spec, described)
    _check_length_policy(spec, described)
    _check_filters(spec)
    _check_size(spec)
    home, loaded = described[spec.home], [described.get(party, {}) for party in spec.parties]
    vocab_size = min(about.get("vocab_size", spec.vocab_size) for about in loaded)  # what all of them have
    lists = {about.get("pieces", "") for about in loaded}  # that they answer in pieces of
    pieces = lists.pop() if len(loaded) > 1 and len(lists) == 1 else ""
    writes_day = any(about.get("writes_day") for about in loaded)  # a chat template of one of them
    spec = replace(
        spec,
        # piece 0 is the end
        eos_token_ids=(0,) if pieces else tuple(end for end in home["eos_token_ids"] if end < vocab_size),
        vocab_size=home["num_pieces"] if pieces else vocab_size,
        pieces=pieces,
        day=given.get("day", date.today().isoformat()) if writes_day else "",
        weights_fingerprints={
            party: fingerprint
            for party in spec.parties
            if (fingerprint := described.get(party, {}).get("weights_fingerprint", "")) and party != spec.home
        },
        has_several_models=have_several_models(described, spec),
        race_depth=home.get("race_depth", 0) if spec.race_depth else 0,  # of the codec that is loaded there
    )
    _check_biases(spec)
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


def notes_on(
    spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]], options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Notes beside an answer on what `build_spec` chose for the query with these options; none where no cloud has an
    index, as on a device of which one knows that it is alone."""
    has_index = described.get(Party.CLOUD, {}).get("factory") != NO_INDEX
    return (NOTHING_TO_ADD,) if spec.only and has_index and not options.get("only") else ()


def _configure(config: Config, options: Mapping[str, Any]) -> Config:
    parties: dict[str, Any] = {
        party: change(config.party(party), {"num_documents": count})
        for party, count in _counts(config, options.get("num_documents")).items()
    }
    workers = {name: parties.pop(name, worker) for name, worker in config.workers.items()}
    preset = settings_of_preset(options[KEY]) if KEY in options else {}
    sampling = {**preset.get("sampling", {}), **_changes(SamplingParams, options)}
    decoding = {**preset.get("decoding", {}), **_changes(DecodingConfig, options)}
    codec = CodecConfig(**preset["codec"]) if "codec" in preset else config.codec
    return replace(
        config,
        sampling=change(options.get("sampling", config.sampling), sampling),
        decoding=_change(config.decoding, decoding),
        link=change(config.link, _changes(LinkConfig, options)),
        weights=change(config.weights, preset.get("weights", {})),
        codec=codec,
        workers=workers,
        **parties,
    )


def _counts(config: Config, num_documents: int | Mapping[str, int] | None) -> dict[str, int]:
    """How many documents each party retrieves, where a query says so. Raises ConfigError for a party that is none.

    One number is for every party that has an index.
    """
    if num_documents is None:
        return {}
    if isinstance(num_documents, Mapping):
        return {
            _find_party(name, config.parties, "num_documents"): count for name, count in num_documents.items()
        }
    return dict.fromkeys(config.holders, num_documents)


def _change(group: S, changes: Mapping[str, Any]) -> S:
    """The group with some settings replaced; where they contradict each other the first one is at fault."""
    try:
        return change(group, changes)
    except ConfigError as error:
        error.option = error.option or next(iter(changes), None)
        raise


def _changes(group: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(group)}
    return {name: value for name, value in options.items() if name in names}


def _find_party(name: str, parties: Sequence[str], option: str) -> str:
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


def _check_grammar(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """All parties must have llguidance. Whether it can follow the grammar they find out, within limits."""
    for party in spec.parties if spec.grammar else ():
        if not described.get(party, {}).get("has_grammars"):
            raise QueryError(
                f"An answer that follows a grammar needs llguidance at every party, but {in_words(party)} does not "
                f"have it; run `{install_line('grammar')}` there and start it again, or leave the grammar out.",
                option="grammar",
            )


def _check_biases(spec: SessionSpec) -> None:
    """A bias names a token, which another vocabulary does not have."""
    if spec.pieces and spec.logit_bias:
        raise QueryError(
            "The parties have different vocabularies and write this answer in pieces of text, but logit_bias names "
            "tokens of one of them; leave it out, ask one party with only, or use models that share a tokenizer.",
            option="logit_bias",
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
    for party in PARTIES:
        if spec.filter(party) and party not in spec.parties:
            names = ", ".join(spec.parties)
            asked = f"{in_words(spec.only)} was asked alone" if spec.only else f"{names} are asked"
            sentence = f"{party}_filter is for documents of the {party}, but {asked}; leave it out."
            raise QueryError(sentence, option=f"{party}_filter")

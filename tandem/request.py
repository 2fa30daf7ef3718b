"""What is asked for becomes the spec of a session: settings, a question and its options, checked.

Knows settings, options and the fields of a spec; nothing of actors or of how a query goes on.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tandem.config import Config, GenerationConfig
from tandem.errors import ConfigError, QueryError
from tandem.protocol.spec import SessionSpec
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.retrieval.filters import Filter

MAX_SPEC_BYTES = 4_000_000
"""Of a query as JSON; a message within a side holds 4 MiB."""


def spec_of(config: Config) -> SessionSpec:
    """The spec with all that `config` determines.

    `session`, `query`, `seed` and `eos_token_ids` are empty: whoever asks fills them in (dataclasses.replace).
    """
    generation, weights, link = config.generation, config.weights, config.link
    return SessionSpec(
        session=0,
        query="",
        seed=0,
        draft_rule=generation.draft_rule,
        temperature=generation.temperature,
        placement=generation.placement,
        synchronous=generation.synchronous,
        max_new_tokens=generation.max_new_tokens,
        stop_strings=generation.stop,
        device_documents=config.device.num_documents,
        cloud_documents=config.cloud.num_documents,
        relevance_scale=weights.scale,
        weight_interval=weights.interval,
        weight_lag=weights.lag,
        weight_momentum=weights.momentum,
        max_window=generation.max_window,
        on_peer_loss=link.on_peer_loss,
        peer_loss_margin_s=link.peer_loss_margin_s,
    )


def build_spec(
    config: Config,
    described: Mapping[Party, Mapping[str, Any]],
    question: str,
    *,
    seed: int | None = None,
    alone: str | None = None,
    device_filter: Filter | None = None,
    cloud_filter: Filter | None = None,
    provisional: bool = False,
    **changed: Any,
) -> SessionSpec:
    """The spec of a new session. Raises QueryError or ConfigError.

    described: what each side's actors said of its model. The options are those of `Tandem.astream`; `changed` are those
    that replace settings of `config.generation`, where they are not None.
    """
    if not question.strip():
        raise QueryError(f"A question must have text, this one is {question!r}; ask something.")
    if changed.get("stop") is not None:
        changed["stop"] = tuple(changed["stop"])
    config = replace(config, generation=_checked(config.generation, changed))
    spec = replace(
        spec_of(config),
        session=secrets.randbits(32),
        query=question,
        seed=_seed(seed),
        device_decode_line=tuple(described[Party.DEVICE]["decode_line"]),
        cloud_decode_line=tuple(described[Party.CLOUD]["decode_line"]),
        alone=None if alone is None else party_named(alone),
        device_filter=_filter("device_filter", device_filter),
        cloud_filter=_filter("cloud_filter", cloud_filter),
        provisional=provisional,
    )
    _check_alone(spec)
    _check_size(spec)
    return replace(spec, eos_token_ids=tuple(described[spec.home]["eos_token_ids"]))


def _checked(generation: GenerationConfig, changed: dict[str, Any]) -> GenerationConfig:
    """The settings with those of one query; Config checks them."""
    try:
        found = replace(generation, **{name: value for name, value in changed.items() if value is not None})
        Config(generation=found)
    except TypeError as error:
        raise ConfigError(f"A query takes known options only: {error}; see Tandem.astream.") from None
    return found


def party_named(name: str) -> Party:
    """By its name. Raises ConfigError."""
    try:
        return Party(name)
    except ValueError:
        raise ConfigError(f"A side is device or cloud, this one is {name!r}; name one of the two.") from None


def _filter(name: str, given: Filter | None) -> str:
    """As it travels. QueryError if it is none."""
    if given is None:
        return ""
    from tandem.retrieval.filters import values_of

    scalar = (str, int, float, bool)
    is_filter = isinstance(given, Mapping) and all(
        isinstance(key, str) and all(isinstance(each, scalar) for each in values_of(wanted))
        for key, wanted in given.items()
    )
    if not is_filter:
        raise QueryError(
            f'{name} is metadata as {{"source": "a.txt", "page": [1, 2]}}, this is {given!r:.100}; give texts, numbers '
            "or lists of them."
        )
    kept = {key: wanted if isinstance(wanted, scalar) else values_of(wanted) for key, wanted in given.items()}
    try:
        return json.dumps(kept) if kept else ""
    except ValueError as error:  # of a whole number with thousands of digits
        raise QueryError(
            f"{name} holds a number that cannot be written: {error}; give a smaller one."
        ) from None


def _check_size(spec: SessionSpec) -> None:
    """The question and its filters must fit a message, however they are escaped."""
    num_bytes = len(spec.to_json())
    if num_bytes > MAX_SPEC_BYTES:
        raise QueryError(
            f"A query with its filters travels as at most {MAX_SPEC_BYTES} bytes, this one has {num_bytes}; "
            "shorten the question, or give fewer values."
        )


def _check_alone(spec: SessionSpec) -> None:
    """A side that is not asked has no documents to filter."""
    for party in PARTIES:
        if spec.filter(party) and party not in spec.parties:
            raise QueryError(
                f"{party}_filter is for documents of the {party}, but the {spec.alone} was asked alone; leave it out."
            )


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(64)
    if not 0 <= seed < 1 << 64:
        raise ConfigError(
            f"A seed is an integer from 0 to 2^64 - 1, this one is {seed}; choose one in that range."
        )
    return seed

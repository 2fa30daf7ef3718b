"""A cloud's description of itself for its devices: fingerprints and sizes, no path, and no name but
that of documents which come with Tandem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from tandem.errors import ProtocolError

Word = Annotated[str, Field(max_length=300)]


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Those descriptions of a cloud's actors that a device needs; "" and None where the cloud has nothing to say."""

    protocol_version: int  # the newest
    oldest_version: int | None = None  # None: the same
    vocabulary_fingerprint: Word
    tokenizer: Word
    vocabulary_prefixes: Annotated[list[Word], Field(max_length=64)] = field(default_factory=list)
    template_fingerprint: Word = ""
    writes_day: bool = False
    weights_fingerprint: Word
    codec: Word
    race_depth: Annotated[int, Field(ge=0, le=1 << 20)]
    policy: Word
    length_policy: Word
    vocab_size: Annotated[int, Field(ge=1)]
    eos_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)]
    context_length: Annotated[int, Field(ge=1)]
    num_documents: Annotated[int, Field(ge=0)]
    has_grammars: bool = False
    decode_line: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=8)]
    embedder_fingerprint: Word | None = None
    scorer_fingerprint: Word | None = None
    factory: Word = ""  # of its index; only whether there is one matters
    corpus: Word | None = None  # documents that come with Tandem, by their name; "": its own
    max_queries: Annotated[int, Field(ge=1)] | None = None  # that a device may ask at once

    def as_description(self) -> dict[str, Any]:
        """As actors describe themselves; what is not known is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


_JSON = TypeAdapter(About)


def describe_publicly(description: Mapping[str, Any]) -> dict[str, Any]:
    """The part of what a cloud's actors report that its devices may know."""
    known = {one.name for one in fields(About)}
    return {key: value for key, value in description.items() if key in known}


def read_about(told: Mapping[str, Any]) -> About:
    """Read a cloud's description of itself. Raises ProtocolError."""
    try:
        return _JSON.validate_json(json.dumps(dict(told)), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))[:60]
        raise ProtocolError(
            f"The cloud describes itself in a way that this device does not understand, at {where!r}; install the same "
            "version of Tandem on both."
        ) from None

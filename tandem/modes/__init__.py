"""The ways of working together. `reference` says what an answer is; then one file explains one mode completely."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tandem.conversation import KNOWN_FIELDS
from tandem.errors import ConfigError, ProtocolError
from tandem.modes.dual import Dual
from tandem.modes.federated import Federated
from tandem.modes.mode import Mode, Solo
from tandem.modes.query import QuerySpec, Roles
from tandem.modes.speculative import Speculative
from tandem.topology import Party

MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Dual, Speculative, Federated)}
"""Modes of several parties, by name. One party alone is `Solo`, whatever the mode."""


def rules_of(spec: QuerySpec) -> Mode:
    """The rules of a query. Raises ConfigError if its mode does not allow these parties."""
    mode = MODES[spec.decoding.mode]
    if spec.only is not None:
        return Solo(spec, votes_are_tokens=mode.votes_are_tokens)
    return mode(spec)


@dataclass(frozen=True, kw_only=True)
class SessionSpec(QuerySpec):
    """One query. Both parties hold the same spec, except that the cloud does not see the device's filter (`as_for`)."""

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_FIELDS

    @cached_property
    def rules(self) -> Mode:
        """All in which modes differ. Raises ConfigError where the mode does not allow these parties."""
        return rules_of(self)

    @property
    def roles(self) -> Roles:
        """The roles of all parties. Raises ConfigError likewise."""
        return self.rules.roles

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that take part."""
        return self.roles.topology.parties

    @property
    def home(self) -> str:
        """The party whose draft queue keeps the events for the client: the one that is asked."""
        return self.roles.topology.home

    def as_for(self, party: str) -> SessionSpec:
        """The part that `party` may see: metadata of private documents stay on the device."""
        return self if party == Party.DEVICE else replace(self, device_filter="")

    def to_json(self) -> str:
        """The query as JSON, for `Begin`, `Open` and the control plane: what differs from the defaults, under short
        names. Written once.

        UnicodeEncodeError if a text holds half a surrogate pair.
        """
        return self._written

    @cached_property
    def _written(self) -> str:
        return _JSON.dump_json(self, by_alias=True, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> SessionSpec:
        """Inverse of `to_json`. Raises ProtocolError.

        A newer party may write fields that this one does not know. One that changes no token has a name that begins
        with `NO_TOKEN`, and is ignored; any other is refused by its name.
        """
        try:
            return cls._read(text)
        except ProtocolError:
            if (readable := _drop_newer(text)) is None:
                raise
            return cls._read(readable)

    @classmethod
    def _read(cls, text: str) -> SessionSpec:
        try:
            return _JSON.validate_json(text, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            name, *inner = problem["loc"] or ("JSON",)
            where = ".".join(map(str, (_NAMES.get(str(name), name), *inner)))
            if problem["type"] == "unexpected_keyword_argument":
                raise ProtocolError(
                    f"The query has an option that this version does not know and that may change the answer "
                    f"({where:.60}); install the newer version of tandem-rag here, or ask without it."
                ) from None
            value = problem["input"]
            got = f", got {value:g}" if isinstance(value, int | float) and abs(value) < MAX_SHOWN else ""
            raise ProtocolError(
                f"The spec of a session is malformed at {where:.60} ({problem['msg']:.200}{got}); "
                "install the same version of tandem-rag everywhere."
            ) from None
        except ConfigError as error:  # of a group of settings
            raise ProtocolError(
                f"The spec of a session is malformed at its settings ({str(error)!r:.200}); "
                "install the same version of tandem-rag everywhere."
            ) from None


def _drop_newer(text: str) -> str | None:
    """A query without the fields that change no token, of a newer version; None if it has none."""
    try:
        query = json.loads(text)
    except ValueError:
        return None
    if not isinstance(query, dict):
        return None
    groups = [group for group in (query, *query.values()) if isinstance(group, dict)]
    newer = [(group, name) for group in groups for name in group if name.startswith(NO_TOKEN)]
    for group, name in newer:
        del group[name]
    return json.dumps(query) if newer else None


NO_TOKEN = "_"
"""Begins the names of fields that change no token."""
MAX_SHOWN = 1e15
"""Numbers below are quoted where they are refused."""
_JSON = TypeAdapter(SessionSpec)
_NAMES: dict[str, str] = {
    hint.__metadata__[-1].alias: name for name, hint in get_type_hints(QuerySpec, include_extras=True).items()
}
"""Field names by those under which they cross a link."""

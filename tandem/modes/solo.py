"""One party alone (`only`): the only voter, whose draft is the token. Nothing crosses a link."""

from __future__ import annotations

from tandem.modes.mode import Mode
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.topology import alone, as_party


class Solo(Mode):
    """A mode of one voter."""

    name = "solo"

    def __init__(self, spec: QuerySpec, *, votes_are_tokens: bool) -> None:
        """votes_are_tokens: in the mode that the query would have with the others.

        What the codec leaves of a vote decides there and so does here, that answers compare. Race lists leave the whole
        target, so nothing needs to be encoded where nobody else reads it.
        """
        super().__init__(spec)
        self.votes_are_tokens |= votes_are_tokens or self.has_race_lists

    def assign_roles(self, spec: QuerySpec) -> Roles:
        """All are its own."""
        role = Role(drafts=True, votes=True, weight=1.0, decides=True)
        return Roles(topology=alone(as_party(spec.only or "")), roles=(role,))

"""The line of one decoder: the committed tokens, then its own drafts."""

from __future__ import annotations

from tandem.messages import Adopt, Commit
from tandem.protocol.prefix import Prefix


class DraftLine:
    """What a decoder drafts on, and how commits change it.

    Invariants: the first `num_committed` tokens are committed. Commits take effect in the order of (view, step),
    whatever the order of arrival: the data plane may be Ray calls, which overtake each other.
    """

    def __init__(self, session: int) -> None:
        self.prefix = Prefix(session)
        self.num_committed = 0
        self.view = 0
        self.early: dict[
            tuple[int, int], Commit
        ] = {}  # by view and step: overtook an earlier one, or an Adopt

    def commit(self, commit: Commit) -> bool:
        """Take in a commit; False: it is not the next one."""
        key, following = (commit.view, commit.step), (self.view, self.num_committed)
        if key != following:
            if key > following:
                self.early[key] = commit
            return False
        self.num_committed += 1
        self.replace(commit.step, commit.token)
        return True

    def replace(self, step: int, token: int) -> None:
        """Put `token` at `step`; drafts that were conditioned on another token there are rolled back."""
        tokens = self.prefix.tokens
        if step >= len(tokens) or tokens[step] != token:
            self.prefix.truncate(step)
            self.prefix.append(token)

    def adopt(self, adopt: Adopt) -> bool:
        """Take over committed tokens; False: a later commit is already here."""
        length = len(adopt.tokens)
        if (adopt.view, length) < (self.view, self.num_committed):
            return False
        self.view = adopt.view
        self.prefix.truncate(self.prefix.common_length(adopt.tokens))
        self.prefix.extend(adopt.tokens[len(self.prefix) :])
        self.num_committed = len(self.prefix)
        self.early = {key: kept for key, kept in self.early.items() if key >= (adopt.view, length)}
        return True

    def take_next(self) -> Commit | None:
        """The commit that follows, if it has overtaken something."""
        return self.early.pop((self.view, self.num_committed), None)

"""The parties of a session, by absolute names that are the same in every process, and how they stand to each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from tandem.errors import ConfigError, did_you_mean

MAX_PARTIES = 64
"""An index of a party travels as one byte."""
SERVER = "server"
"""The party of mode "federated" that drafts and decides."""


class Party(StrEnum):
    """The two parties by the documents that they hold; the only form used in messages, logs, settings and files."""

    DEVICE = "device"
    CLOUD = "cloud"

    @property
    def other(self) -> Party:
        """The opposite party."""
        return Party.CLOUD if self is Party.DEVICE else Party.DEVICE


PARTIES: tuple[Party, Party] = (Party.DEVICE, Party.CLOUD)
"""Both parties, always in this order, so that sums over parties round alike on both hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The parties of one session and how they stand to each other; what each does is said by its `Roles`.

    Raises ConfigError if the values contradict each other.
    """

    parties: tuple[str, ...]  # in an order that fixes every sum; on the wire a party is its index
    home: str  # its client asked, and it streams the answer
    authority: str  # its committed tokens win a divergence
    private: frozenset[str] = frozenset()  # parties whose filters, paths and titles stay with them
    dials: frozenset[tuple[str, str]] = frozenset()  # (who opens the connection, to whom)

    def __post_init__(self) -> None:
        """Checks what a peer's query may say: who takes part, and who is asked."""
        if not 1 <= len(self.parties) <= MAX_PARTIES:
            raise ConfigError(
                f"A session has 1 to {MAX_PARTIES} parties (got {len(self.parties)}); name that many."
            )
        name, count = Counter(self.parties).most_common(1)[0]
        if count > 1 or not all(self.parties):
            raise ConfigError(
                f"Each party needs a name of its own, but {name!r} is there {count} times; rename one."
            )
        for name in (self.home, self.authority):
            self.index(name)

    def index(self, name: str) -> int:
        """The number of a party on the wire. Raises ConfigError."""
        try:
            return self.parties.index(name)
        except ValueError:
            raise ConfigError(
                f"{name!r} is no party of this session; {did_you_mean(name, self.parties)}"
            ) from None

    def name(self, index: int) -> str:
        """The party with that number. Raises ConfigError."""
        if not 0 <= index < len(self.parties):
            raise ConfigError(
                f"A session of {len(self.parties)} parties has no party number {index}; check the sender."
            )
        return self.parties[index]

    def dials_of(self, name: str) -> tuple[str, ...]:
        """The parties to which this one opens a connection, in order."""
        return tuple(party for party in self.parties if (name, party) in self.dials)

    @property
    def dialled(self) -> tuple[str, ...]:
        """The parties that others connect to, in order."""
        targets = {target for _, target in self.dials}
        return tuple(party for party in self.parties if party in targets)

    def peers(self, name: str) -> tuple[str, ...]:
        """The parties to which this one has a link, in order."""
        linked = {end for pair in self.dials if name in pair for end in pair}
        return tuple(party for party in self.parties if party in linked and party != name)

    def toward_home(self, name: str) -> str | None:
        """The peer of this party through which it reaches the home; None: it is at home.

        A party that has no link to the home has one link alone.
        """
        if name == self.home:
            return None
        peers = self.peers(name)
        return self.home if self.home in peers else next(iter(peers), None)


PAIR = Topology(
    parties=PARTIES,
    home=Party.DEVICE,
    authority=Party.DEVICE,
    private=frozenset({Party.DEVICE}),
    dials=frozenset({(Party.DEVICE, Party.CLOUD)}),
)
"""A device that may be behind NAT, and the cloud that it dials."""


def alone(party: str) -> Topology:
    """A party that answers alone."""
    return Topology(parties=(party,), home=party, authority=party)


def star(server: str, workers: tuple[str, ...], home: str = "") -> Topology:
    """A server, and workers that dial it. home: who is asked, by default the server."""
    return Topology(
        parties=(server, *workers),
        home=home or server,
        authority=server,
        dials=frozenset((worker, server) for worker in workers),
    )


def in_words(party: str) -> str:
    """A party within a sentence: "the device", "the server"; a worker by its name."""
    return f"the {party}" if party in (*PARTIES, SERVER) else party


def as_party(name: str) -> str:
    """The name of a party; device and cloud as the members of `Party` that they are."""
    return Party(name) if name in PARTIES else name


def at_start(party: str) -> str:
    """A party at the start of a sentence."""
    return f"The {party}" if party in (*PARTIES, SERVER) else party

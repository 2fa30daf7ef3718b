"""What a party's votes and drafts may say of its documents: a bound, an accountant and noise of its own.

Let p be the distribution of the party's row without a document, q that of its rows with documents, both at the query's
temperature and after its sampling options. What the party votes or drafts with is q' = `clip(q, p, c)`:

    (1)  |log q'(x) - log p(x)| <= c  for every token x that p gives a probability.

The accountant adds up d_t = `divergence(q'_t, p_t)`, the Renyi divergence of order 2 in the worse direction, over all
tokens ever drawn over a collection of documents. Where the sum would exceed the budget B, p_t is drawn from instead.

Theorem. Let every token be drawn with noise that an observer does not know, from q'_t or instead from p_t at every
step; how the question, the other parties' tokens and the choice of q'_t follow from what came before is arbitrary. Let
P and N be the laws of the tokens with and without the documents. Then, for every event A,

    (2)  D_2(P || N) <= B and D_2(N || P) <= B, so P(A)^2 <= e^B N(A) and N(A)^2 <= e^B P(A);
    (3)  e^(-nc) N(A) <= P(A) <= e^(nc) N(A) if at most n tokens are drawn.

Proof. With r_t = q'_t(x_t) / p_t(x_t), the product of r_t^2 exp(-D_2(q'_t || p_t)) is a martingale of mean 1 under N,
and the sum of the exponents is at most B on every path, so E_N[prod r_t^2] <= e^B. The other direction is the same
under P with 1/r_t. Cauchy and Schwarz: P(A) = E_N[1_A dP/dN] <= sqrt(N(A) e^B). (3) follows from (1), factor by factor.
This is a Renyi filter (Feldman and Zrnic, "Individual Privacy Accounting via a Renyi Filter", arXiv 2008.11193) for the
one pair of neighbours "all documents" and "none"; that d_t depends on the documents does no harm, because the filter,
and not a sum looked at afterwards, bounds every path. Bounding each step's divergence from the public row is PMixED's
idea (arXiv 2410.02016), clipping against it InvisibleInk's (arXiv 2507.02974). NOT in those papers: the closed form of
`clip`, and a whole collection instead of one document as what is protected. `docs/explanation/privacy.md` says who the
observer may be under which draft rule.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.config.parties import PartyConfig
from tandem.errors import ConfigError
from tandem.system.files import locked, read_private
from tandem.system.paths import data_folder, write_whole

Floats = NDArray[np.float64]


def clip(mixed: Floats, bare: Floats, bound: float) -> Floats:
    """The distribution q' [vocab]: q where it is within a factor e^c of p everywhere, else cut to that and filled up.

    mixed: q. bare: p. bound: c >= 0, in nats. Mass that is missing after the cut goes to the tokens in proportion to
    how far they are below their upper bounds, and mass that is left over is taken in proportion to how far they are
    above their lower ones, so that both bounds hold for the result itself.
    """
    low, high = math.exp(-bound) * bare, math.exp(bound) * bare
    cut = np.clip(mixed, low, high)
    missing = 1.0 - float(cut.sum())
    edge = high if missing > 0 else low
    room = float((edge - cut).sum())
    return cut if room == 0.0 else cut + (edge - cut) * min(1.0, missing / room)


def divergence(first: Floats, second: Floats) -> float:
    """max(D_2(first || second), D_2(second || first)) of two distributions [vocab], in nats.

    D_2(a || b) = log sum_x a(x)^2 / b(x); inf unless both give a probability to the same tokens.
    """
    if ((first > 0) != (second > 0)).any():
        return math.inf
    is_possible = first > 0
    a, b = first[is_possible], second[is_possible]
    return max(0.0, math.log((a * a / b).sum()), math.log((b * b / a).sum()))


class Spent(NamedTuple):
    """What was drawn over one collection of documents so far."""

    nats: float = 0.0  # sum of the divergences
    num_draws: int = 0


class Ledger:
    """The accountant: a file of this user's alone, in which processes add up what each collection has spent.

    Only the user starts a count again, by deleting the file: a document that is added or taken out leaves what was said
    of the others where it is.
    """

    def __init__(
        self,
        path: Path,
        collection: str,
        budget: float = 0.0,
        warn: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        """collection: what names the documents. budget: B in nats; 0: no limit. warn: receives one sentence when the
        budget first falls short."""
        self._path, self._collection, self._budget, self._warn = path, collection, budget, warn
        self._has_warned = False

    def spent(self) -> Spent:
        """The sum so far. Raises ConfigError where the file cannot be read."""
        return self._read()[1].get(self._collection, Spent())

    def key(self) -> bytes:
        """The secret of this user's private noise, 32 bytes. Raises ConfigError."""
        with locked(self._path.with_suffix(".lock")):
            key, known = self._read()
            if not key:
                key = secrets.token_bytes(32)
                self._write(key, known)
        return key

    def spend(self, nats: float) -> bool:
        """Whether the budget has room for a draw of this divergence; then it is written down before the token is drawn.

        Raises ConfigError where the file cannot be read or written.
        """
        with locked(self._path.with_suffix(".lock")):
            key, known = self._read()
            spent = known.get(self._collection, Spent())
            has_room = not self._budget or spent.nats + nats <= self._budget
            if has_room:
                known[self._collection] = Spent(spent.nats + nats, spent.num_draws + 1)
                self._write(key or secrets.token_bytes(32), known)
        if not (has_room or self._has_warned):
            self._has_warned = True
            self._warn(
                f"The privacy budget of {self._budget:g} nats has {self._budget - spent.nats:.3g} left, too little "
                "for a token: what does not fit is drawn without the documents. Raise privacy_budget, or delete "
                f"{self._path} to start the count again."
            )
        return has_room

    def _write(self, key: bytes, known: dict[str, Spent]) -> None:
        try:
            write_whole(self._path, json.dumps({"key": key.hex(), "spent": known}, indent=1).encode())
        except OSError as error:
            raise ConfigError(
                f"{self._path} counts what answers say of the documents, but cannot be written ({error.strerror}); "
                "check the disk and the folder's permissions."
            ) from None

    def _read(self) -> tuple[bytes, dict[str, Spent]]:
        content = read_private(self._path)
        if content is None:
            return b"", {}
        try:
            values = json.loads(content)
            known = {name: Spent(float(nats), int(draws)) for name, (nats, draws) in values["spent"].items()}
            if not all(spent.nats >= 0 for spent in known.values()):
                raise ValueError("a sum below 0")
            return bytes.fromhex(values["key"]), known
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} counts what answers say of the documents, but is malformed ({error}); restore it, or "
                "delete it to start the count again."
            ) from None


def ledger_path() -> Path:
    """The file of all of this user's collections."""
    return data_folder() / "privacy.json"


class Privacy:
    """The bound of one party in one session, with its accountant and its noise."""

    def __init__(self, bound: float, spend: Callable[[float], bool], key: bytes) -> None:
        """bound: c in nats. spend: as `Ledger.spend`. key: of the session, for the noise; known to no peer."""
        self._bound, self._spend, self._key = bound, spend, key

    def protect(self, mixed: Floats, bare: Floats, *, is_drawn: bool) -> Floats:
        """What is voted or drafted with, [vocab]: `clip`, or the bare row where the budget has no room for that.

        is_drawn: whether a token is drawn from it; at temperature 0 none is, and nothing is counted.
        """
        clipped = clip(mixed, bare, self._bound)
        if is_drawn and not self._spend(divergence(clipped, bare)):
            return bare
        return clipped

    def seed(self, digest: bytes) -> int:
        """In the place of the query's seed where a token is drawn that only its own party needs to know beforehand.

        digest: of the prefix. The same again after a restart, and independent of it for any other prefix or query.
        """
        return int.from_bytes(blake2b(digest, key=self._key, digest_size=8).digest())


def make_privacy(party: PartyConfig, temperature: float, spec: str, warn: Callable[[str], object]) -> Privacy:
    """What the settings of a party ask for in one session. warn: as of `Ledger`. spec: of the session, from which its
    noise follows; the same one must not come twice with other documents.

    Raises ConfigError where a budget is to hold at temperature 0, or the accountant's file cannot be used.
    """
    if party.privacy_budget and temperature == 0:
        raise ConfigError(
            f"A privacy budget ({party.privacy_budget:g} nats) needs a temperature above 0, for at 0 no token is drawn "
            "and nothing can be promised of it; raise sampling.temperature, or set privacy_budget to 0."
        )
    ledger = Ledger(ledger_path(), party.index, party.privacy_budget, warn)
    key = blake2b(spec.encode("utf-8", "surrogatepass"), key=ledger.key(), digest_size=32).digest()
    return Privacy(party.privacy, ledger.spend, key)

"""What a party's votes and drafts may say of its documents: a bound, an accountant and noise of its own.

Let p be the distribution of the party's row without a document, q that of its rows with documents, both at the query's
temperature and after its sampling options. What the party votes or drafts with is q' = `clip(q, p, c)`:

    (1)  |log q'(x) - log p(x)| <= c  for every token x that p gives a probability.

The accountant adds up d_t = `divergence(q'_t, p_t)`, the Renyi divergence of order 2 in the worse direction, over all
tokens ever drawn over this user's documents. Where the sum would exceed the budget B, p_t is drawn from instead.

Theorem. Let all that a party sends be computed from tokens, each of which was drawn from q'_t or from p_t with noise
that served no draw before and that nobody else knows, and from what the documents do not influence. What is drawn next,
from which question, prefix and documents, may depend in any way on all that came before, so a peer may have it draw
after one prefix again and again. Let P and N be the laws of all that is ever sent with the documents and without. Then,
for every event A,

    (2)  D_2(P || N) <= B and D_2(N || P) <= B, so P(A)^2 <= e^B N(A) and N(A)^2 <= e^B P(A);
    (3)  e^(-nc) N(A) <= P(A) <= e^(nc) N(A) if at most n tokens are drawn;
    (4)  e^(-2nc) P'(A) <= P(A) <= e^(2nc) P'(A) and P(A)^4 <= e^(3B) P'(A), where P' is the law with other documents.

Proof. Given all that came before, tokens apart, the next thing that is sent has the same law under P and N. So dP/dN is
the product of r_t = q'_t(x_t) / p_t(x_t) over the draws, of 1 where p_t was drawn from. The product of r_t^2
exp(-D_2(q'_t || p_t)) is a martingale of mean 1 under N, and the sum of the exponents is at most B on every path, so
E_N[prod r_t^2] <= e^B. The other direction is the same under P with 1/r_t. Cauchy and Schwarz: P(A) = E_N[1_A dP/dN] <=
sqrt(N(A) e^B). (3) follows from (1), factor by factor, and (4) from (3) and (2) by way of N.

It takes noise that is never used twice. Were one prefix drawn from q' and later, because the budget has ended, from p
with the same noise, then two tokens that differ would be impossible without documents, though each draw for itself is
within the bound. So noise is fresh for every draw (`Privacy.seed`), every draw is counted, and a token that is asked
for again is repeated (`Drafter.draft`): what is computed from a token costs nothing. A draw that is forgotten, with the
process that made it, is made and counted again.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.config.parties import PartyConfig
from tandem.errors import ConfigError
from tandem.system.paths import data_folder, locked, read_private, write_private

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
    """What was drawn over this user's documents so far."""

    nats: float = 0.0  # sum of the divergences
    num_draws: int = 0


class Ledger:
    """The accountant: a file of this user's alone, in which all processes add up what was said of any documents.

    There is one sum, since documents may be moved, copied, linked and indexed again, and what was said of them remains
    said. Only the user starts it again, by deleting the file.
    """

    def __init__(
        self,
        path: Path,
        budget: float = 0.0,
        warn: Callable[[str], object] = lambda sentence: None,
        name: str = "documents",
    ) -> None:
        """budget: B in nats; 0: no limit. warn: receives one sentence when the budget first falls short. name: what a
        count that begins now is called in the file."""
        self._path, self._budget, self._warn, self._name = path, budget, warn, name
        self._has_warned = False

    def spent(self) -> Spent:
        """The sum so far. Raises ConfigError where the file cannot be read."""
        return _total(self._read())

    def spend(self, nats: float) -> bool:
        """Whether the budget has room for a draw of this divergence; then that is on the disk before a token is drawn,
        and no crash gives it back.

        Raises ConfigError where the file cannot be read or written.
        """
        with locked(self._path.with_suffix(".lock")):
            counts = self._read()
            spent = _total(counts)
            has_room = math.isfinite(nats) and (not self._budget or spent.nats + nats <= self._budget)
            if has_room:
                name = next(iter(counts), self._name)
                own = counts.get(name, Spent())
                counts[name] = Spent(own.nats + nats, own.num_draws + 1)
                write_private(self._path, json.dumps({"spent": counts}, indent=1).encode())
        if not (has_room or self._has_warned):
            self._has_warned = True
            self._warn(
                f"The privacy budget of {self._budget:g} nats has {self._budget - spent.nats:.3g} left, too little "
                "for a token: what does not fit is drawn without the documents. Raise privacy_budget, or delete "
                f"{self._path} to start the count again."
            )
        return has_room

    def _read(self) -> dict[str, Spent]:
        """The counts by name; several where an earlier version kept one for each index."""
        content = read_private(self._path)
        if content is None:
            return {}
        try:
            spent = json.loads(content)["spent"]
            counts = {name: Spent(float(nats), int(draws)) for name, (nats, draws) in spent.items()}
            if not all(0 <= count.nats < math.inf for count in counts.values()):
                raise ValueError("a sum that is no number of nats")
            return counts
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} counts what answers say of the documents, but is malformed ({error}); restore it, or "
                "delete it to start the count again."
            ) from None


def _total(counts: Mapping[str, Spent]) -> Spent:
    return Spent(
        math.fsum(count.nats for count in counts.values()), sum(count.num_draws for count in counts.values())
    )


def ledger_path() -> Path:
    """The file in which everything that this user's documents say is counted."""
    return data_folder() / "privacy.json"


class Privacy:
    """The bound of one party in one session, with its accountant and its noise."""

    def __init__(
        self,
        bound: float,
        spend: Callable[[float], bool],
        noise: Callable[[], int] = lambda: secrets.randbits(64),
        *,
        has_budget: bool = False,
    ) -> None:
        """bound: c in nats. spend: as `Ledger.spend`. noise: 64 bits, others at each call, that nobody knows.
        has_budget: whether something is promised of all draws together, so that nothing but draws may be sent."""
        self._bound, self._spend, self.seed, self.has_budget = bound, spend, noise, has_budget

    def protect(self, mixed: Floats, bare: Floats, *, is_drawn: bool) -> Floats:
        """What is voted or drafted with, [vocab]: `clip`, or the bare row where the budget has no room for that.

        is_drawn: whether a token is drawn from it; at temperature 0 none is, and nothing is counted.
        """
        clipped = clip(mixed, bare, self._bound)
        if is_drawn and not self._spend(divergence(clipped, bare)):
            return bare
        return clipped


def make_privacy(party: PartyConfig, temperature: float, warn: Callable[[str], object]) -> Privacy:
    """What the settings of a party ask for in one session. warn: as of `Ledger`.

    Raises ConfigError where a budget is to hold at temperature 0.
    """
    if party.privacy_budget and temperature == 0:
        raise ConfigError(
            f"A privacy budget ({party.privacy_budget:g} nats) needs a temperature above 0, for at 0 no token is drawn "
            "and nothing can be promised of it; raise sampling.temperature, or set privacy_budget to 0."
        )
    ledger = Ledger(ledger_path(), party.privacy_budget, warn, party.index)
    return Privacy(party.privacy, ledger.spend, has_budget=party.privacy_budget > 0)

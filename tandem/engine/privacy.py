"""What a party's votes and drafts may say of its documents: a bound, an accountant and noise of its own.

Let p be the distribution of the party's row without a document, q that of its rows with documents, both at the query's
temperature and after its sampling options. What the party votes or drafts with is q' = `clip(q, p, c)`:

    |log q'(x) - log p(x)| <= c  for every token x that p gives a probability.

The accountant adds up d_t = `divergence(q'_t, p_t)`, the Renyi divergence of order 2 in the worse direction, over all
tokens ever drawn over this user's documents. Where the sum would exceed the budget B, p_t is drawn from instead.

`docs/explanation/privacy.md` says what that promises and proves it, and who the observer may be under which draft rule.
The proof takes noise that is never used twice: it is fresh for every draw (`Privacy.seed`), every draw is counted, and
a token that is asked for again is repeated (`Drafter.draft`). A draw that is forgotten, with the process that made it,
is made and counted again.

This is a Renyi filter (Feldman and Zrnic, "Individual Privacy Accounting via a Renyi Filter", arXiv 2008.11193).
Bounding each step's divergence from the public row is PMixED's idea (arXiv 2410.02016), clipping against it
InvisibleInk's (arXiv 2507.02974). NOT in those papers: the closed form of `clip`, and a whole collection instead of one
document as what is protected.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
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
    """The draws over this user's documents so far."""

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
        return self._read()[1]

    def spend(self, nats: float) -> bool:
        """Whether the budget has room for a draw of this divergence; then that is on the disk before a token is drawn,
        and no crash gives it back.

        Raises ConfigError where the file cannot be read or written.
        """
        with locked(self._path.with_suffix(".lock")):
            name, spent = self._read()
            has_room = math.isfinite(nats) and (not self._budget or spent.nats + nats <= self._budget)
            if has_room:
                more = Spent(spent.nats + nats, spent.num_draws + 1)
                write_private(self._path, json.dumps({"spent": {name: more}}, indent=1).encode())
        if not (has_room or self._has_warned):
            self._has_warned = True
            self._warn(
                f"The privacy budget of {self._budget:g} nats has {self._budget - spent.nats:.3g} left, too little "
                "for a token: what does not fit is drawn without the documents. Raise privacy_budget, or delete "
                f"{self._path} to start the count again."
            )
        return has_room

    def _read(self) -> tuple[str, Spent]:
        """The name of the count and the sum, also where an earlier version kept one for each index."""
        content = read_private(self._path)
        if content is None:
            return self._name, Spent()
        try:
            spent = json.loads(content)["spent"]
            counts = [Spent(float(nats), int(draws)) for nats, draws in spent.values()]
            if not all(0 <= count.nats < math.inf for count in counts):
                raise ValueError("a sum that is no number of nats")
            total = Spent(math.fsum(count.nats for count in counts), sum(count.num_draws for count in counts))
            return next(iter(spent), self._name), total
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} counts what answers say of the documents, but is malformed ({error}); restore it, or "
                "delete it to start the count again."
            ) from None


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
        """The distribution [vocab] to vote or draft with: `clip`, or the bare row where the budget has no room for it.

        is_drawn: whether a token is drawn from it; at temperature 0 none is, and nothing is counted.
        """
        clipped = clip(mixed, bare, self._bound)
        if is_drawn and not self._spend(divergence(clipped, bare)):
            return bare
        return clipped


def make_privacy(party: PartyConfig, temperature: float, warn: Callable[[str], object]) -> Privacy:
    """Make the bound that a party's settings ask for, for one session. warn: as of `Ledger`.

    Raises ConfigError where a budget is to hold at temperature 0.
    """
    if party.privacy_budget and temperature == 0:
        raise ConfigError(
            f"A privacy budget ({party.privacy_budget:g} nats) needs a temperature above 0, for at 0 no token is drawn "
            "and nothing can be promised of it; raise sampling.temperature, or set privacy_budget to 0."
        )
    ledger = Ledger(ledger_path(), party.privacy_budget, warn, party.index)
    return Privacy(party.privacy, ledger.spend, has_budget=party.privacy_budget > 0)

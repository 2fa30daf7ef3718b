"""The ways of using documents that are compared, by the names of DRAGON section 7.2 where it has one.

Plain data: which sides' documents, together in one row or a row each, and how rows are weighed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.config.parties import RowLayout
from tandem.errors import ConfigError, nearest
from tandem.topology import PARTIES, Party

NUM_PASSAGES = 3
"""In the one prompt of plain RAG, unless another number is asked for."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way of using documents."""

    label: str
    parties: tuple[Party, ...]  # whose documents
    is_context: bool = False  # context aggregation: all in one row, instead of output aggregation: a row each
    weights: Literal["static", "evidence"] = "evidence"  # output aggregation: how rows count
    layout: RowLayout = (
        "rows"  # of output aggregation: how documents stand in rows, as `protocol.rows` has it
    )
    pick: Literal["", "best", "each", "right"] = ""
    # of context aggregation: the best of both parties, the best of each, or what holds the answer, whatever the counts
    steps: Literal["never", "auto", "always"] = (
        "never"  # of output aggregation: whether it is written in steps
    )
    rule: str = ""  # of output aggregation: one of `rules.RULES` in the place of Tandem's


METHODS: dict[str, Method] = {
    "none": Method("no documents", (), is_context=True),
    "rag": Method("plain RAG, best of both", PARTIES, is_context=True, pick="best"),
    "rag-each": Method("plain RAG, best of each", PARTIES, is_context=True, pick="each"),
    "rag-right": Method("plain RAG, right passages", PARTIES, is_context=True, pick="right"),
    "crcg-device": Method("CRCG, device", (Party.DEVICE,), is_context=True),
    "crcg-cloud": Method("CRCG, cloud", (Party.CLOUD,), is_context=True),
    "drcg": Method("DRCG", PARTIES, is_context=True),
    "device": Method("output aggregation, device alone", (Party.DEVICE,)),
    "cloud": Method("output aggregation, cloud alone", (Party.CLOUD,)),
    "static": Method("static weights", PARTIES, weights="static"),
    "evidence": Method("Tandem, evidence weights", PARTIES),
    "pced": Method("PCED, the best expert's token", PARTIES, rule="pced"),
    "nbce": Method("NBCE, the surest row", PARTIES, rule="nbce"),
    "delta": Method("the cloud's model, steered by notes", PARTIES, rule="delta"),
    "auto": Method("Tandem, steps where needed", PARTIES, steps="auto"),
    "steps": Method("Tandem, in steps", PARTIES, steps="always"),
    "joined": Method("Tandem, one row a party", PARTIES, layout="joined"),
    "both": Method("Tandem, rows, joined and bare", PARTIES, layout="both"),
}
"""By the name on the command line."""


def select_methods(names: str) -> dict[str, Method]:
    """The methods of a list such as "none,drcg,evidence". Raises ConfigError for a name that there is not."""
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in METHODS:
            raise ConfigError(
                f"A method is one of {', '.join(METHODS)}, but {name!r} was asked for; "
                f"the nearest is {nearest(name, list(METHODS))!r}."
            )
    return {name: METHODS[name] for name in METHODS if name in wanted}

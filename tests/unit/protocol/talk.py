"""What parties say to each other, in short: votes, frames, and what a state machine sends to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.messages import LinkBody, LinkFrame, Local, Resync, Verdict, Vote
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send


def vote(before: Sequence[int] | Prefix = (), tokens: Sequence[int] = (1,), **values: Any) -> Vote:
    """What a party says after some tokens of session 1: it proposes the next ones."""
    prefix = before if isinstance(before, Prefix) else Prefix(1, before)
    return Vote(**{"step": len(prefix), "digest": prefix.digest, "tokens": tuple(tokens), **values})


def frame(
    body: LinkBody, tokens: Sequence[int] = (), *, session: int = 1, view: int = 0, number: int = 0
) -> LinkFrame:
    """A body from a peer that has committed these tokens."""
    prefix = Prefix(session, tokens)
    return LinkFrame(
        session=session, view=view, number=number, committed=len(prefix), committed_digest=prefix.digest,
        stamp=1, echo=0, held_us=0, body=body,
    )  # fmt: skip


def decided(step: int, *tokens: int, session: int = 1, view: int = 0, is_last: bool = False) -> Local:
    """What the own decoder of a party hears of tokens that are committed."""
    verdict = Verdict(step=step, tokens=tokens, accepted=(), acceptance=(), next_decider=0)
    return Local(session=session, body=verdict, view=view, is_last=is_last)


def adopted(*tokens: int, session: int = 1, view: int = 0, is_last: bool = False) -> Local:
    """What it hears of all committed tokens."""
    return Local(session=session, body=Resync(decider=0, tokens=tokens), view=view, is_last=is_last)


def to(role: str, sends: Sequence[Send]) -> list[Any]:
    """The messages to one kind of actor."""
    return [send.message for send in sends if send.to == role]


def bodies(sends: Sequence[Send]) -> list[Any]:
    """What goes to peers."""
    return [message.body for message in to("peer", sends)]


def events(sends: Sequence[Send]) -> list[Any]:
    """What the client sees."""
    return [message.event for message in to("client", sends)]


def votes(sends: Sequence[Send]) -> list[Vote]:
    """What passes between a decoder and its coordinator."""
    bodies = [send.message.body for send in sends if isinstance(send.message, Local)]
    return [body for body in bodies if isinstance(body, Vote)]

"""What a decoder does in its model thread: one batch of jobs of one kind, each with a result of its own.

A batch is abandoned only when none of its sessions wants its part any more. If a batch fails, its jobs are tried one by
one, so that a session's failure is its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tandem.codecs import Codec
from tandem.codecs.base import ROOT
from tandem.protocol.decoding import DecodingSession, Forward, Prefill
from tandem.protocol.outbox import Send
from tandem.protocol.spec import SessionSpec
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine, Feed, OpenResult

T = TypeVar("T")


class Draft(NamedTuple):
    """The result of a forward job at one step: a draft, or the vote of a party that does not draft."""

    token: int
    payload: bytes  # what is sent of it, mostly Codec.encode(q)
    dense: NDArray[np.float64]  # q before the codec, [vocab]
    decode_us: int


class Opened(NamedTuple):
    """The result of one prefill job."""

    result: OpenResult
    prefill_us: int


def prefill(
    engine: Engine,
    jobs: Sequence[Prefill],
    open_prompt: Callable[[Prefill], OpenResult],
    is_wanted: Callable[[Prefill], bool],
) -> list[Opened | Exception | None]:
    """Open the sessions and compute their prompts; None where it was abandoned."""
    from tandem.engine.engine import Feed

    started_s = time.perf_counter()
    opened = [_attempt(lambda job=job: open_prompt(job)) for job in jobs]  # type: ignore[misc]
    ready = [job for job, result in zip(jobs, opened, strict=True) if not isinstance(result, Exception)]
    feeds = [Feed(str(job.session), ()) for job in ready]
    logits = iter(_forward(engine, feeds, [lambda job=job: is_wanted(job) for job in ready]))  # type: ignore[misc]
    results: list[Opened | Exception | None] = []
    for result in opened:
        if isinstance(result, Exception):
            results.append(result)
            continue
        computed = next(logits)
        is_there = computed is not None and not isinstance(computed, Exception)
        results.append(Opened(result, elapsed_us(started_s)) if is_there else computed)  # type: ignore[arg-type]
    return results


def draft(
    engine: Engine,
    drafter_of: Callable[[DecodingSession], Drafter],
    jobs: Sequence[Forward],
    sessions: Sequence[DecodingSession],
) -> list[list[Draft] | Exception | None]:
    """The drafts of each job, by step; None where they are no longer wanted."""
    from tandem.engine.engine import Feed

    started_s = time.perf_counter()
    feeds = [Feed(str(job.session), job.tokens, 1 + len(job.earlier)) for job in jobs]
    pairs = list(zip(sessions, jobs, strict=True))
    wanted = [lambda session=session, job=job: session.is_current(job) for session, job in pairs]
    results: list[list[Draft] | Exception | None] = []
    for (session, job), logits in zip(pairs, _forward(engine, feeds, wanted), strict=True):
        if logits is None or isinstance(logits, Exception):
            results.append(logits)
        elif not session.is_current(job):
            results.append(None)
        else:
            made = _attempt(lambda: _draw(session, job, drafter_of(session), logits, started_s))  # noqa: B023
            results.append(made)
    return results


def make_drafter(codec: Codec, spec: SessionSpec, party: str) -> Drafter:
    """What a party needs in one session. Raises ConfigError if there is no such rule."""
    from tandem.engine.drafter import Drafter, TokenDrafter, TokenVoter

    role = spec.roles.role(party)
    if role.votes and not spec.votes_are_tokens:
        return Drafter(spec.codec_of_votes(codec), spec.sampling, spec.draft_rule, spec.vocab_size)
    make = TokenDrafter if role.drafts else TokenVoter
    return make(
        codec,
        spec.sampling,
        spec.draft_rule,
        spec.vocab_size,
        sends_drafts=spec.sends_drafts,
        num_logprobs=spec.num_logprobs if spec.names_logprobs(party) else None,
    )


def settle(result: T | Exception | None, act: Callable[[T], list[Send]]) -> list[Send] | Exception:
    """What is to be sent for a result, or what failed."""
    if result is None:
        return []
    return result if isinstance(result, Exception) else _attempt(lambda: act(result))


def elapsed_us(started_s: float) -> int:
    """Microseconds since `started_s` of the performance counter."""
    return int((time.perf_counter() - started_s) * 1e6)


def _draw(
    session: DecodingSession, job: Forward, drafter: Drafter, logits: torch.Tensor, started_s: float
) -> list[Draft]:
    """logits: [rows, steps, vocab]."""
    drafts = []
    for position, weights in enumerate((*job.earlier, job.weights)):
        step = job.first + position
        token, payload, dense = drafter.draft(
            logits[:, position],
            weights or (0.0,),
            seed=session.spec.seed,
            step=step,
            party=Party(session.party) if session.party in PARTIES else Party.CLOUD,  # of no matter there
            lineage=job.lineage[: step + 1] or ROOT,
            proposed=job.proposed[position] if job.proposed else None,
        )
        drafts.append(Draft(token, payload, dense, elapsed_us(started_s)))
    return drafts


def _forward(
    engine: Engine, feeds: Sequence[Feed], is_wanted: Sequence[Callable[[], bool]]
) -> list[torch.Tensor | Exception | None]:
    from tandem.engine.engine import Preempted

    if not feeds:
        return []
    try:
        return list(engine.forward(feeds, is_stale=lambda: not any(wants() for wants in is_wanted)))
    except Preempted:
        return [None] * len(feeds)
    except Exception as error:
        if len(feeds) == 1:
            return [error]
        return [_forward(engine, [feed], [wants])[0] for feed, wants in zip(feeds, is_wanted, strict=True)]


def _attempt(act: Callable[[], T]) -> T | Exception:
    try:
        return act()
    except Exception as error:
        return error


def count_malformed(drafter: Drafter | None) -> int:
    """Proposals that a session's drafter could not read; they counted as none."""
    return 0 if drafter is None else drafter.num_malformed

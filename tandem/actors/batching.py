"""What a decoder does in its model thread: one batch of jobs of one kind, each with a result of its own.

A batch is abandoned only when none of its sessions wants its part any more. If a batch fails, its jobs are tried one by
one, so that a session's failure is its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tandem.aggregation.document_weights import Evidence, Weights, log_evidence
from tandem.codecs import Codec
from tandem.codecs.base import ROOT
from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import DecodingSession, Forward, Prefill, Result, compute_steps
from tandem.protocol.outbox import Send
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    import torch

    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine, Feed, OpenResult

T = TypeVar("T")


class Opened(NamedTuple):
    """The result of one prefill job."""

    result: OpenResult
    prefill_us: int
    question: tuple[float, ...]  # log likelihood of the question in each row, as far as it is wanted


BASELINE = "/bare"
"""After the name of a session: its question without any document."""


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
    for job, result in zip(jobs, opened, strict=True):
        computed = result if isinstance(result, Exception) else next(logits)
        if computed is None or isinstance(computed, Exception):
            results.append(computed)
            continue
        assert not isinstance(result, Exception)
        question = _attempt(lambda job=job: score_question(engine, str(job.session), job))  # type: ignore[misc]
        if isinstance(question, Exception):
            results.append(question)
        else:
            results.append(Opened(result, elapsed_us(started_s), question))
    return results


def score_question(engine: Engine, session: str, job: Prefill) -> tuple[float, ...]:
    """Log likelihood of the question in each row; with a baseline, what the documents add to it.

    session: of the engine, whose prompt is computed.
    """
    if not job.scores_question:
        return ()
    likelihoods = engine.question_likelihoods(session)
    if not job.has_baseline:
        return likelihoods
    name = f"{session}{BASELINE}"
    engine.open(
        name, job.query, (), job.max_new_tokens, history=job.history, scores_question=True, day=job.day
    )
    try:
        engine.next_logits(name, ())
        (bare,) = engine.question_likelihoods(name)
    finally:
        engine.close(name)
    return tuple(likelihood - bare for likelihood in likelihoods)


def draft(
    engine: Engine,
    drafter_of: Callable[[DecodingSession], Drafter],
    jobs: Sequence[Forward],
    sessions: Sequence[DecodingSession],
) -> list[list[Result] | Exception | None]:
    """The drafts of each job, by step; None where they are no longer wanted."""
    from tandem.engine.engine import Feed

    started_s = time.perf_counter()
    feeds = [Feed(str(job.session), job.tokens, 1 + job.num_earlier) for job in jobs]
    pairs = list(zip(sessions, jobs, strict=True))
    wanted = [lambda session=session, job=job: session.is_current(job) for session, job in pairs]
    results: list[list[Result] | Exception | None] = []
    for (session, job), logits in zip(pairs, _forward(engine, feeds, wanted), strict=True):
        if logits is None or isinstance(logits, Exception):
            results.append(logits)
        elif not session.is_current(job):
            results.append(None)
        else:
            model = _Logits(session, job, drafter_of(session), logits)
            results.append(_attempt(lambda: compute_steps(job, model, lambda: elapsed_us(started_s))))  # noqa: B023
    return results


def make_drafter(codec: Codec, spec: SessionSpec, party: str) -> Drafter:
    """What a party needs in one session. Raises ConfigError if there is no such rule."""
    from tandem.engine.drafter import Drafter, TokenDrafter, TokenVoter

    role = spec.roles.role(party)
    if role.votes and not spec.rules.votes_are_tokens:
        return Drafter(spec.rules.codec_of_votes(codec), spec.sampling, spec.draft_rule, spec.vocab_size)
    make = TokenDrafter if role.drafts else TokenVoter
    return make(
        codec,
        spec.sampling,
        spec.draft_rule,
        spec.vocab_size,
        sends_drafts=spec.rules.needs_drafts,
        num_logprobs=spec.num_logprobs if spec.rules.names_logprobs(party) else None,
    )


def settle(result: T | Exception | None, act: Callable[[T], list[Send]]) -> list[Send] | Exception:
    """What is to be sent for a result, or what failed."""
    if result is None:
        return []
    return result if isinstance(result, Exception) else _attempt(lambda: act(result))


def elapsed_us(started_s: float) -> int:
    """Microseconds since `started_s` of the performance counter."""
    return int((time.perf_counter() - started_s) * 1e6)


class _Logits:
    """The logits of one job, [rows, steps, vocab], as `compute_steps` asks for them."""

    def __init__(
        self, session: DecodingSession, job: Forward, drafter: Drafter, logits: torch.Tensor
    ) -> None:
        self._session, self._job, self._drafter, self._logits = session, job, drafter, logits
        self._last: int | None = None  # the step that was drawn last

    def draw(self, step: int, weights: Weights) -> tuple[int, bytes]:
        """The draft or vote at one step."""
        job, session = self._job, self._session
        result = self._drafter.draft(
            self._logits[:, step - job.first],
            weights or (0.0,),
            seed=session.spec.seed,
            step=step,
            party=Party(session.party) if session.party in PARTIES else Party.CLOUD,  # of no matter there
            lineage=job.lineage[: step + 1] or ROOT,
            proposed=job.proposed[step - job.wanted] if job.proposed else None,
        )
        self._last = step
        return result.token, result.payload

    def learn(self, step: int, token: int) -> Evidence:
        """How probable each row finds a token."""
        from tandem.engine.drafter import row_probabilities

        rows = self._drafter.rows if step == self._last else None
        if rows is None:
            logits = self._logits[:, step - self._job.first, : self._session.spec.vocab_size]
            rows = row_probabilities(logits)  # as the drafter's: over the tokens that all parties have
        return log_evidence(rows[:, token].tolist())


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

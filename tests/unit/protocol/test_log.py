"""Several verdicts in one: the same tokens, and the same drafts that were accepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.messages import LinkFrame, Logprobs, Tail, Verdict, VerifyResult, decode_link, encode
from tandem.protocol.log import MAX_VERDICT_TOKENS, Log, join_verdicts
from tandem_lab.simulation.specs import make_spec

COUNTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=7)
"""Tokens of each verdict, and how many of them were proposed."""


def log() -> Log:
    return Log(1, make_spec(mode="speculative").roles, "cloud")


def logprobs(first: int, size: int) -> tuple[Logprobs, ...]:
    """Those of so many tokens from one on, each of which tells its step."""
    steps = range(first, first + size)
    return tuple(Logprobs(logprob=-step, top_ids=(step,), top_logprobs=(-step,)) for step in steps)


def verdicts(counts: list[tuple[int, int]], *, has_tails: bool = False) -> list[Verdict]:
    """As they go to the home. has_tails: with log probabilities."""
    made: list[Verdict] = []
    step = 0
    for size, accepted in counts:
        result = VerifyResult(
            session=1, view=0, digest=bytes(8), step=step, voters=(1,), tokens=tuple(range(step, step + size)),
            accepted=(min(accepted, size),), acceptance=(0.0,), next_decider=1,
            tail=(Tail(logprobs=logprobs(step, size)),) * has_tails,
        )  # fmt: skip
        made.append(log().make_verdict(result, size).for_home())
        step += size
    return made


def tokens_of(verdict: Verdict) -> list[tuple[int, int, tuple[bool, ...]]]:
    """Step, token, and whether it had been proposed, one by one."""
    positions = enumerate(verdict.tokens)
    return [(verdict.step + number, token, verdict.accepted_at(number)) for number, token in positions]


@given(COUNTS, st.booleans())
def test_joined_verdicts_say_what_they_said_one_by_one(
    counts: list[tuple[int, int]], has_tails: bool
) -> None:
    apart = verdicts(counts, has_tails=has_tails)
    joined = join_verdicts(apart)
    assert joined.logprobs == (logprobs(0, len(joined.tokens)) if has_tails else ())
    assert len(joined.tokens) <= MAX_VERDICT_TOKENS
    assert tokens_of(joined) == [token for verdict in apart for token in tokens_of(verdict)]
    frame = LinkFrame(
        session=1, view=0, committed=0, committed_digest=bytes(8), stamp=1, echo=0, held_us=0, body=joined
    )  # fmt: skip
    assert decode_link(encode(frame)) == frame


@given(COUNTS, st.data())
def test_of_a_verdict_that_began_before_only_the_rest_counts(
    counts: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Verdicts that were sent again, joined in another way."""
    joined = join_verdicts(verdicts(counts, has_tails=True))
    num_known = data.draw(st.integers(0, len(joined.tokens) - 1))
    own = log()
    for position in range(num_known):
        own.append(joined, position)
    own.hold(joined)
    rest = own.take_next()
    assert rest is not None
    assert tokens_of(rest) == tokens_of(joined)[num_known:]
    assert rest.logprobs == logprobs(num_known, len(joined.tokens) - num_known)

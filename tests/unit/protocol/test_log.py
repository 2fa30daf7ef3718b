"""Prefixes and their digests; several verdicts in one: the same tokens, and the same drafts that were accepted; and
what becomes of proposals, by the committed tokens alone."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.messages import LinkFrame, Logprobs, Tail, Verdict, VerifyResult, decode_link, encode
from tandem.protocol.ballots import count_accepted, is_open
from tandem.protocol.log import MAX_VERDICT_TOKENS, Log, Prefix, common_length, join_verdicts
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import vote

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


UNHURRIED = settings(deadline=None, derandomize=True)
tokens = st.lists(st.integers(0, 2**18 - 1), max_size=12)


@UNHURRIED
@given(tokens, tokens)
def test_equal_digests_mean_equal_tokens(first: list[int], second: list[int]) -> None:
    assert (Prefix(1, first).digest == Prefix(1, second).digest) == (first == second)


@UNHURRIED
@given(tokens, tokens, st.data())
def test_a_rolled_back_prefix_is_as_if_never_drafted(
    base: list[int], rest: list[int], data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(base)))
    prefix = Prefix(7, base)
    prefix.truncate(length)
    prefix.extend(rest)
    fresh = Prefix(7, base[:length] + rest)
    assert (prefix.tokens, prefix.digests, len(prefix)) == (fresh.tokens, fresh.digests, len(fresh))


@UNHURRIED
@given(tokens, tokens)
def test_the_common_beginning(first: list[int], second: list[int]) -> None:
    common = common_length(first, second)
    assert first[:common] == second[:common]
    assert common == min(len(first), len(second)) or first[common] != second[common]


def test_sessions_do_not_share_digests() -> None:
    assert Prefix(1).digest != Prefix(2).digest
    assert Prefix(1, [5]).digest != Prefix(2, [5]).digest
    assert len(Prefix(1).digest) == 8


@UNHURRIED
@given(tokens, st.data())
def test_whether_it_begins_with_a_digest(base: list[int], data: st.DataObject) -> None:
    """Also while another thread is in the middle of a change: its lists then have different lengths."""
    prefix, digests = Prefix(7, base), Prefix(7, base).digests
    length = data.draw(st.integers(0, len(base)))
    assert prefix.begins_with(digests[length], length)
    assert not prefix.begins_with(bytes(8), length)
    for half_done in (prefix.tokens.clear, prefix.digests.clear):
        half_done()
        assert isinstance(prefix.begins_with(digests[length], length), bool)
    assert not prefix.begins_with(digests[length], length)


def test_a_count_agrees_with_the_obvious_one() -> None:
    """All proposals of up to three binary tokens after one token, and all committed tokens of up to five, with a token
    behind them that is not committed."""
    for length, num in product(range(4), range(6)):
        for tokens, committed in product(product((0, 1), repeat=length), product((0, 1), repeat=num)):
            expected: int | None = None
            if num > 1 and committed[0] == 1:
                equal = [one == other for one, other in zip(tokens, committed[1:], strict=False)]
                accepted = equal.index(False) if False in equal else len(equal)
                is_decided = False in equal or accepted == length
                expected = accepted if is_decided else None
            prefix, proposal = Prefix(1, (*committed, 1)), vote((1,), tokens)
            assert count_accepted(proposal, prefix, num) == expected
            is_other = num > 0 and committed[0] != 1
            assert is_open(proposal, prefix, num) == (expected is None and not is_other)

"""Prefixes and their digests."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.protocol.log import Prefix, common_length

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

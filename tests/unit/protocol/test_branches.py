"""Which branches are dead: those that differ from the committed prefix, and whatever continues them."""

from __future__ import annotations

import random

from tandem.protocol.prefix import Branches, Prefix


def add(branches: Branches, tokens: list[int], token: int) -> bytes:
    """A proposal conditioned on `tokens`; returns their digest."""
    digest = Prefix(1, tokens).digest
    branches.add(digest, len(tokens), token)
    return digest


def test_what_continues_a_rejected_token_is_dead() -> None:
    branches = Branches()
    digests = [add(branches, [5, 6, 7][:length], 5 + length) for length in range(4)]
    branches.commit(Prefix(1, [9]))
    assert [branches.is_dead(digest) for digest in digests[1:]] == [True, True, True]


def test_what_continues_an_accepted_token_is_alive() -> None:
    branches = Branches()
    digests = [add(branches, [5, 6, 7][:length], 5 + length) for length in range(4)]
    branches.commit(Prefix(1, [5]))
    assert not any(branches.is_dead(digest) for digest in digests)


def test_a_second_branch_of_one_prefix_lives_on() -> None:
    """A restarted decoder may draw another token from the same prefix, and it may be the target."""
    branches = Branches()
    add(branches, [], 5)
    dead = add(branches, [5], 6)
    add(branches, [], 9)
    alive = add(branches, [9], 6)
    branches.commit(Prefix(1, [9]))
    assert branches.is_dead(dead)
    assert not branches.is_dead(alive)


def test_what_arrives_late_on_a_dead_branch_is_dead() -> None:
    branches = Branches()
    add(branches, [], 5)
    branches.commit(Prefix(1, [9]))
    first = add(branches, [5], 6)
    second = add(branches, [5, 6], 7)
    assert branches.is_dead(first)
    assert branches.is_dead(second)


def test_an_unknown_parent_counts_as_alive_until_its_step() -> None:
    branches = Branches()
    late = add(branches, [5, 6], 7)
    later = add(branches, [5, 6, 7], 8)
    branches.commit(Prefix(1, [9]))
    assert not branches.is_dead(late)
    branches.commit(Prefix(1, [9, 9]))
    assert branches.is_dead(late)
    assert branches.is_dead(later)


def test_nothing_shorter_than_the_committed_prefix_is_remembered() -> None:
    rng, branches, prefix = random.Random(0), Branches(), Prefix(1)
    for _ in range(200):
        drafted = Prefix(1, prefix.tokens)
        for _ in range(8):
            token = rng.randrange(3)
            branches.add(drafted.digest, len(drafted), token)
            drafted.append(token)
        prefix.append(rng.randrange(3))
        branches.commit(prefix)
        assert len(branches) < 200

"""Which branches are dead: those that differ from the committed prefix, and whatever continues them."""

from __future__ import annotations

import random

from tandem.protocol.lineage import Lineage
from tandem.protocol.prefix import Prefix


def add(lineage: Lineage, tokens: list[int], token: int) -> bytes:
    """A proposal conditioned on `tokens`; returns their digest."""
    digest = Prefix(1, tokens).digest
    lineage.add(digest, len(tokens), token)
    return digest


def test_what_continues_a_rejected_token_is_dead() -> None:
    lineage = Lineage()
    digests = [add(lineage, [5, 6, 7][:length], 5 + length) for length in range(4)]
    lineage.commit(Prefix(1, [9]))
    assert [lineage.is_dead(digest) for digest in digests[1:]] == [True, True, True]


def test_what_continues_an_accepted_token_is_alive() -> None:
    lineage = Lineage()
    digests = [add(lineage, [5, 6, 7][:length], 5 + length) for length in range(4)]
    lineage.commit(Prefix(1, [5]))
    assert not any(lineage.is_dead(digest) for digest in digests)


def test_a_second_branch_of_one_prefix_lives_on() -> None:
    """A restarted decoder may draw another token from the same prefix, and it may be the target."""
    lineage = Lineage()
    add(lineage, [], 5)
    dead = add(lineage, [5], 6)
    add(lineage, [], 9)
    alive = add(lineage, [9], 6)
    lineage.commit(Prefix(1, [9]))
    assert lineage.is_dead(dead)
    assert not lineage.is_dead(alive)


def test_what_arrives_late_on_a_dead_branch_is_dead() -> None:
    lineage = Lineage()
    add(lineage, [], 5)
    lineage.commit(Prefix(1, [9]))
    first = add(lineage, [5], 6)
    second = add(lineage, [5, 6], 7)
    assert lineage.is_dead(first)
    assert lineage.is_dead(second)


def test_an_unknown_parent_counts_as_alive_until_its_step() -> None:
    lineage = Lineage()
    late = add(lineage, [5, 6], 7)
    later = add(lineage, [5, 6, 7], 8)
    lineage.commit(Prefix(1, [9]))
    assert not lineage.is_dead(late)
    lineage.commit(Prefix(1, [9, 9]))
    assert lineage.is_dead(late)
    assert lineage.is_dead(later)


def test_nothing_shorter_than_the_committed_prefix_is_remembered() -> None:
    rng, lineage, prefix = random.Random(0), Lineage(), Prefix(1)
    for _ in range(200):
        drafted = Prefix(1, prefix.tokens)
        for _ in range(8):
            token = rng.randrange(3)
            lineage.add(drafted.digest, len(drafted), token)
            drafted.append(token)
        prefix.append(rng.randrange(3))
        lineage.commit(prefix)
        assert len(lineage) < 200

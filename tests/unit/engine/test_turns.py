"""Rows of ended queries serve the next turn: fewer tokens are computed, with the same bits, in bounded memory."""

from __future__ import annotations

import torch

from tandem.engine.kv import TurnCaches
from tandem.plugins.torch.batch import TorchRows

# ---- what is kept ----------------------------------------------------------------------------------------------


def cache_of(num_columns: int) -> TorchRows:
    cache = TorchRows(1, num_columns)
    cache.add_layer(0, torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    return cache


def test_the_least_recently_used_goes_first_and_the_budget_holds() -> None:
    turns = TurnCaches()
    turns.max_bytes = 2 * cache_of(64).num_bytes
    for start in (1, 2):
        turns.keep(((start, 5, 5),), cache_of(64), [0, 0])
    assert turns.find([1, 5, 9], 1) is not None
    turns.keep(((3, 5, 5),), cache_of(64), [0, 0])
    assert turns.num_bytes == turns.max_bytes
    assert turns.find([2, 5, 5], 1) is None
    found = turns.find([1, 5, 9], 1)
    assert found is not None
    assert found.num_tokens == 2
    turns.keep(((4,),), cache_of(64 * 4), [0, 0])
    assert turns.find([4], 1) is None, "larger than the budget"


def test_a_longer_turn_takes_the_place_of_those_that_it_continues() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    turns.keep(((1, 2), (8,)), cache_of(64), [0, 0])
    turns.keep(((1, 2, 3), (8, 9)), cache_of(128), [0, 0])
    assert turns.num_bytes == cache_of(128).num_bytes
    turns.keep(((1, 2, 4), (8, 9)), cache_of(64), [0, 0])
    assert turns.num_bytes == cache_of(128).num_bytes + cache_of(64).num_bytes


def test_the_longest_common_beginning_is_found_if_it_covers_the_document() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    turns.keep(((1, 2, 3),), cache_of(64), [0, 0])
    turns.keep(((7,), (1, 2, 3, 4)), cache_of(64), [0, 0])
    found = turns.find([1, 2, 3, 4, 5], 2)
    assert found is not None
    assert (found.row, found.num_tokens) == (1, 4)
    assert turns.find([1, 2, 3, 4, 5], 5) is None
    assert turns.find([6], 0) is None

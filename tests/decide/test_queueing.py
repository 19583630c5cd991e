"""Order of service, who makes room, and the bytes of rows."""

from __future__ import annotations

import random

from mlxcel.decide.cache_cost import CacheCost, LayerCost
from mlxcel.decide.queueing import Rank, victims


def test_lower_priority_then_earlier_arrival_comes_first() -> None:
    ranks = [Rank(1, 0), Rank(0, 7), Rank(0, 3), Rank(-2, 9)]
    assert sorted(ranks) == [Rank(-2, 9), Rank(0, 3), Rank(0, 7), Rank(1, 0)]


def test_the_last_in_order_makes_room_and_no_more_than_needed() -> None:
    running = [Rank(5, 1), Rank(9, 2), Rank(5, 3), Rank(0, 4)]
    assert victims(Rank(0, 8), running, lambda kept: len(kept) < 4) == [1]
    assert victims(Rank(0, 8), running, lambda kept: len(kept) < 3) == [1, 2]
    assert victims(Rank(0, 8), running, lambda kept: len(kept) < 2) == [1, 2, 0]


def test_nobody_is_pushed_back_in_vain() -> None:
    running = [Rank(5, 1), Rank(0, 2)]
    assert victims(Rank(0, 8), running, lambda kept: not kept) == []


def test_equals_never_make_room() -> None:
    assert victims(Rank(3, 0), [Rank(3, 5), Rank(2, 6)], lambda kept: True) == []


def test_rows_cost_as_much_as_the_longest_by_whole_steps() -> None:
    cost = CacheCost(layers=(LayerCost(10), LayerCost(100, 40)), slack=8, step=64)
    assert cost.bytes_of([]) == 0
    assert cost.bytes_of([1]) == 64 * 10 + 40 * 100
    assert cost.bytes_of([56]) == 64 * 10 + 40 * 100
    assert cost.bytes_of([57]) == 128 * 10 + 40 * 100
    assert cost.bytes_of([57, 3, 4]) == 3 * (128 * 10 + 40 * 100)


def test_a_request_more_never_costs_less() -> None:
    rng = random.Random(0)
    cost = CacheCost(layers=(LayerCost(3), LayerCost(7, 96)), slack=4, step=32)
    for _ in range(200):
        rows = [rng.randrange(1, 400) for _ in range(rng.randrange(1, 6))]
        assert cost.bytes_of(rows) < cost.bytes_of([*rows, rng.randrange(1, 400)])

"""How many tokens per row a pass is fed, in both numerics."""

from __future__ import annotations

import pytest

from mlxcel.config import Settings
from mlxcel.decide.kernels import decide_kernels
from mlxcel.decide.rows import PassShape, RowRule, rule_of, widest
from mlxcel.errors import ConfigError

# One projection of an H200, 5376 x 21504, 4-bit: microseconds by rows.
H200 = {1: 87.0, 2: 153.0, 3: 218.0, 4: 286.0, 6: 409.0, 8: 71.0, 12: 72.0, 16: 75.0}
STEEP = {1: 1.0, 2: 1.02, 3: 1.05, 4: 1.1, 6: 1.2, 8: 1.3, 12: 1.5, 16: 1.8}


def padding(seconds: dict[int, float]) -> dict[int, int]:
    verdict = decide_kernels({("mlp", "stored"): seconds}, {"mlp": 1.0})
    return dict(verdict.served.padding)


def invariant(**more: int) -> Settings:
    return Settings(numerics="invariant", **more)


def test_fast_pads_a_single_row_to_the_cheapest_count() -> None:
    rule = rule_of(Settings(), padding(H200))
    assert [rule.tokens(1, width) for width in (1, 2, 4, 7, 8, 9)] == [1, 8, 8, 8, 8, 9]
    assert [rule.tokens(2, width) for width in (1, 2, 4)] == [1, 2, 4]
    assert (rule.key(4), rule.key(8)) == ("4 as 8", "")


def test_fast_pads_nothing_where_rows_cost_more_or_nothing_is_known() -> None:
    for rule in (rule_of(Settings(), padding(STEEP)), rule_of(Settings()), RowRule()):
        assert [rule.tokens(1, width) for width in range(1, 17)] == list(range(1, 17))
        assert rule.key(4) == ""


def test_no_padding_above_what_the_caches_have_room_for() -> None:
    assert rule_of(Settings(max_width=6), padding(H200)).tokens(1, 4) == 4
    assert rule_of(invariant(max_width=6), padding(H200)).block == 4


def test_invariant_feeds_one_number_of_tokens() -> None:
    for rule, block in (
        (rule_of(invariant()), 4),
        (rule_of(invariant(default_width=6)), 6),
        (rule_of(invariant(), padding(H200)), 8),
        (rule_of(invariant(default_width=1)), 1),
    ):
        fed = {rule.tokens(rows, width) for rows in (1, 2, 8) for width in range(1, block + 1)}
        assert fed == {block}
        with pytest.raises(ConfigError, match=rf"{block + 1} tokens .* the {block} of"):
            rule.tokens(1, block + 1)


def test_keys_tell_what_is_padded() -> None:
    assert rule_of(invariant()).key(4) == "1 as 4"
    assert rule_of(invariant()).key(2) == "1 as 4, 2 as 4"
    assert rule_of(invariant(), padding(H200)).key(4) == "1 as 8, 4 as 8"


def test_fast_shapes_follow_the_round() -> None:
    rule = rule_of(Settings(), padding(H200))
    assert rule.shape(1, 4, bound=104, exact=100, reserved=500) == PassShape(8, 108, 100)
    assert rule.shape(1, 1, bound=101, exact=100, reserved=500) == PassShape(1, 101, 100)
    assert rule.shape(3, 4, bound=104, exact=None, reserved=500) == PassShape(4, 104, None)


def test_invariant_shapes_do_not() -> None:
    rule = rule_of(invariant())
    rounds = [(1, 101, 100), (4, 104, 100), (2, 110, None), (1, 499, 498), (4, 505, None)]
    shapes = {
        rule.shape(1, width, bound=bound, exact=exact, reserved=500)
        for width, bound, exact in rounds
    }
    assert shapes == {PassShape(4, 508, None)}


def test_widths_are_limited_by_the_block() -> None:
    assert (widest(Settings()), widest(invariant())) == (16, 4)
    assert widest(invariant(default_width=9)) == 9

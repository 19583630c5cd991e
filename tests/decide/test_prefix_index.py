"""Kept prefixes: what serves, what is covered, what goes; compared with plain definitions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mlxcel.decide.prefix_index import LEAST, Prefix, PrefixIndex, Want, common, pack

TEXT = [(7 * i + i * i) % 50 for i in range(100)]


def prefix(tokens=TEXT, cached=None, **fields) -> Prefix:
    cached = len(tokens) - 1 if cached is None else cached
    return Prefix(tokens=pack(tokens), cached=cached, **fields)


def ask(tokens, **fields) -> Want:
    return Want(pack(tokens), **fields)


def test_common_prefix_of_random_sequences():
    rng = random.Random(3)
    for _ in range(500):
        one = [rng.randrange(3) for _ in range(rng.randrange(12))]
        other = one[: rng.randrange(13)] + [rng.randrange(3) for _ in range(rng.randrange(9))]
        expected = 0
        for mine, its in zip(one, other, strict=False):
            if mine != its:
                break
            expected += 1
        assert common(pack(one), pack(other)) == expected


def test_tokens_that_share_bytes_are_not_taken_for_equal():
    assert common(pack([1, 2, 256]), pack([1, 2, 512])) == 2
    assert common(pack([2**32 - 1]), pack([2**32 - 2])) == 0


@pytest.mark.parametrize("shared", [LEAST, 40, 77, 98])
def test_the_longest_match_is_served(shared):
    other = [*TEXT[:shared], 60, 61, 62]
    assert prefix().serves(ask(other)) == shared


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    assert prefix().serves(ask(TEXT[:50])) == 49
    assert prefix().serves(ask(TEXT)) == 99  # the last was never fed


def test_tokens_that_were_never_fed_serve_nobody():
    assert prefix(cached=30).serves(ask([*TEXT, 1, 2])) == 30


def test_too_few_tokens_are_not_worth_it():
    assert prefix().serves(ask([*TEXT[: LEAST - 1], 60, 61])) == 0
    assert prefix().serves(ask(TEXT[:LEAST])) == 0  # whole, but for the last token
    assert prefix().serves(ask(TEXT[: LEAST + 1])) == LEAST


def test_with_a_drafter_one_token_less_and_only_its_own_caches():
    held = prefix(owner="mtp a", drafted=80)
    assert held.serves(ask([*TEXT[:40], 60], owner="mtp a")) == 39
    assert held.serves(ask([*TEXT[:40], 60])) == 40
    assert held.serves(ask([*TEXT, 60, 61], owner="mtp a")) == 80
    assert held.serves(ask([*TEXT[:40], 60], owner="mtp b")) == 0
    assert prefix().serves(ask([*TEXT[:40], 60], owner="mtp a")) == 0


def test_the_unfed_token_lets_a_head_resume_behind_the_last_fed_one():
    held = prefix(owner="mtp", drafted=99)
    assert held.serves(ask([*TEXT, 1, 2], owner="mtp")) == 99
    assert held.serves(ask([*TEXT[:99], 60, 2], owner="mtp")) == 98


@pytest.mark.parametrize(("shared", "served"), [(60, 0), (83, 0), (84, 84), (95, 95)])
def test_a_ring_serves_only_what_it_still_knows(shared, served):
    assert prefix(first=84).serves(ask([*TEXT[:shared], 60, 61])) == served
    assert prefix(first=84).shares(ask([*TEXT[:shared], 60, 61])) == shared


def test_whole_chunks_only_where_bits_must_agree():
    held = prefix(whole=64)
    for shared, served in ((31, 0), (32, 32), (63, 32), (64, 64), (99, 64)):
        assert held.serves(ask([*TEXT[:shared], 60, 61], chunk=32)) == served
    assert held.serves(ask(TEXT[:64], chunk=32)) == 32  # its last token is computed
    assert held.serves(ask([*TEXT[:70], 60], chunk=7)) == 63


def filled(budget, *prefixes):
    index = PrefixIndex(budget)
    for held in prefixes:
        assert index.add(held)[0] is not None
    return index


def test_the_best_of_many_is_found_and_the_latest_of_equals():
    forks = [prefix([*TEXT[:cut], 60 + cut % 7, *range(40)], nbytes=1) for cut in (20, 70, 50, 70)]
    index = filled(10, *forks[:3], replace(forks[3], tokens=pack([*TEXT[:70], 69, 1])))
    key, count = index.best(ask([*TEXT, 1]))
    assert (key, count) == (3, 70)
    assert index.best(ask([*TEXT[:50], 1])) == (3, 50)
    assert index.best(ask([50] * 30)) is None
    assert index.most_shared(ask([*TEXT[:60], 1])) == 60
    assert index.most_shared(ask([50] * 30)) == 0


def test_least_recently_used_makes_room():
    held = [prefix([50 + at, *TEXT], nbytes=4) for at in range(4)]
    index = filled(12, *held[:3])
    index.use(0)
    key, covered, evicted = index.add(held[3])
    assert (key, covered, evicted) == (3, [], [1])
    assert index.nbytes == 12
    assert len(index) == 3
    assert index.best(ask([51, *TEXT])) is None
    assert index.best(ask([50, *TEXT])) == (0, 100)


def test_what_is_too_large_or_too_short_changes_nothing():
    index = filled(12, prefix(nbytes=5))
    assert index.add(prefix([51, *TEXT], nbytes=13)) == (None, [], [])
    assert index.add(prefix(TEXT[:LEAST], nbytes=1)) == (None, [], [])
    assert index.add(prefix([51, *TEXT], first=101, nbytes=1)) == (None, [], [])
    assert index.nbytes == 5
    assert index.best(ask(TEXT)) == (0, 99)


def test_a_longer_one_takes_the_place_of_what_it_covers():
    index = filled(50, prefix(TEXT[:40], nbytes=4), prefix([51, *TEXT], nbytes=4))
    key, covered, evicted = index.add(prefix(nbytes=9))
    assert (key, covered, evicted) == (2, [0], [])
    assert index.nbytes == 13


def test_what_another_covers_is_not_kept_but_counts_as_use():
    index = filled(9, prefix(nbytes=4), prefix([51, *TEXT], nbytes=4))
    assert index.add(prefix(TEXT[:40], nbytes=2)) == (None, [], [])
    assert index.add(prefix([52, *TEXT], nbytes=4))[2] == [1]


@pytest.mark.parametrize(
    "change",
    [{"first": 90}, {"owner": ""}, {"owner": "b"}, {"drafted": 10}, {"whole": 8}],
    ids=lambda change: next(iter(change)),
)
def test_one_that_serves_less_in_some_way_covers_nothing(change):
    short = prefix(TEXT[:40], whole=16, owner="a", drafted=38, nbytes=1)
    long = prefix(whole=16, owner="a", drafted=98, nbytes=1)
    assert long.covers(short)
    assert not replace(long, **change).covers(short)


def test_budget_holds_under_random_use():
    rng = random.Random(8)
    index, sizes = PrefixIndex(100), {}
    for _ in range(400):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(LEAST, 60))]
        size = rng.randrange(1, 130)
        key, covered, evicted = index.add(prefix(tokens, nbytes=size))
        for gone in (*covered, *evicted):
            del sizes[gone]
        if key is not None:
            sizes[key] = size
        assert index.nbytes == sum(sizes.values()) <= 100
        assert len(index) == len(sizes)
        found = index.best(ask([rng.randrange(3) for _ in range(60)]))
        if found:
            assert found[0] in sizes
    index.clear()
    assert (len(index), index.nbytes) == (0, 0)

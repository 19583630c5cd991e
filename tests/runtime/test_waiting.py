"""What waits for a drafter, against plain lists of what each row's cache must come to hold."""

from __future__ import annotations

import random
from pathlib import Path

import mlx.core as mx
import pytest

from mlxcel.runtime.waiting import LITTLE, WAITING, Waiting


class Row:
    """A text by position, and what its drafter has read, by place."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length
        self.unread: list[int] = []  # tokens
        self.read = list(range(length))  # places 0 to length - 1 hold something


class World:
    """Rows beside a `Waiting`, with the newest token of a new row waiting if any does."""

    def __init__(self) -> None:
        self.waiting, self.rows, self.made = Waiting(), list[Row](), 0

    def join(self, rng: random.Random) -> None:
        row = Row(self.made, rng.randint(3, 40))
        self.made += 1
        if self.waiting.count:
            token = self.token(row)
            self.waiting.join((token[None], token[None, :, None] * 1.0), row.length, row.length + 1)
            for other in self.rows:
                other.unread = other.unread[-1:]
            row.unread = [int(token.item())]
            row.length += 1
        self.rows.append(row)
        self.waiting.gaps.append(0)

    def token(self, row: Row) -> mx.array:
        return mx.array([1000 * row.number + row.length], dtype=mx.uint32)

    def step(self) -> None:
        tokens = mx.stack([self.token(row) for row in self.rows])
        start = mx.array([row.length for row in self.rows], mx.int32)
        exact = self.rows[0].length if len(self.rows) == 1 else None
        bound = max(row.length for row in self.rows) + 1
        self.waiting.add((tokens, tokens[..., None] * 1.0), start, exact, bound)
        for row in self.rows:
            row.unread = [*row.unread, 1000 * row.number + row.length][-WAITING:]
            row.length += 1

    def keep(self, rows: list[int]) -> None:
        self.waiting.keep(rows)
        self.rows = [self.rows[at] for at in rows]

    def take(self, tokens: int | None = None) -> None:
        count, exact, bound = self.waiting.count, self.waiting.exact, self.waiting.bound
        assert count == len(self.rows[0].unread)
        assert bound >= max(row.length - gap for row, gap in self.with_gaps())
        (ids, features), start = self.waiting.take(tokens)
        taken = count if tokens is None else tokens
        assert ids.shape == (len(self.rows), taken)
        assert mx.array_equal(features[..., 0], ids.astype(mx.float32))
        assert exact is None or exact == start[0].item()
        for row, mine, place in zip(self.rows, ids.tolist(), start.tolist(), strict=True):
            assert mine == row.unread[:taken]
            assert place == len(row.read)  # right behind what it has read
            row.read += mine
            row.unread = row.unread[taken:]

    def with_gaps(self) -> list[tuple[Row, int]]:
        return list(zip(self.rows, self.waiting.gaps, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_rows_read_in_order_what_was_not_forgotten(seed: int) -> None:
    """Whatever comes and goes: the next place is right behind the last, whatever is lost."""
    rng, world = random.Random(seed), World()
    world.join(rng)
    taken = 0
    for _ in range(300):
        what = rng.random()
        if what < 0.08:
            world.join(rng)
        elif what < 0.14 and len(world.rows) > 1:
            rows = list(range(len(world.rows)))
            rng.shuffle(rows)
            world.keep(rows[: rng.randint(1, len(rows))])
        elif what < 0.24 and world.waiting.count:
            some = rng.choice([None, rng.randint(1, world.waiting.count)])
            world.take(some)
            taken += 1
        else:
            for _ in range(rng.choice([1, 1, 2, 70])):
                world.step()
    assert taken > 10
    assert world.waiting.count <= WAITING
    for row, gap in world.with_gaps():
        assert row.length == len(row.read) + len(row.unread) + gap
    assert any(world.waiting.gaps)


def test_little_counts_all_rows() -> None:
    world, rng = World(), random.Random(0)
    for _ in range(4):
        world.join(rng)
    for _ in range(LITTLE // 4):
        world.step()
    assert world.waiting.little
    world.step()
    assert not world.waiting.little


def test_rows_that_come_and_go_leave_no_graph(tmp_path: Path) -> None:
    """Nobody drafts for long: what waits is evaluated as it changes, or its graph would grow."""
    world, rng = World(), random.Random(0)
    world.join(rng)
    for _ in range(20):
        world.join(rng)
        world.keep([0, len(world.rows) - 1])
        world.step()
    world.keep([1, 0])
    dot = tmp_path / "waiting.dot"
    mx.export_to_dot(str(dot), *world.waiting.newest, world.waiting.take()[1])
    assert "->" not in dot.read_text()

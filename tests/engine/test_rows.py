"""Rows that come and go: buffers are copied once when one joins and once when some leave."""

from __future__ import annotations

import random

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import SlotCache
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny

SETTINGS = Settings(length_step=64, prefill_chunk=16, max_rows=4)


@pytest.mark.parametrize("kind", ["none", "lookup"])
def test_a_row_joins_where_it_is_wanted(kind, monkeypatch):
    """Freed slots are taken again, so a new row often belongs between others."""
    model = tiny.loaded(tiny.llama_model())
    drafter = None if kind == "none" else drafters.make(kind, model, SETTINGS)
    engine = Engine(model, drafter, SETTINGS)
    gathered, inserted = [], []
    gather, append = SlotCache.gather, SlotCache.append

    def noted_gather(cache, rows, positions=None):
        gathered.append(list(rows))
        gather(cache, rows, positions)

    def noted_append(cache, other, at=None):
        inserted.append((at, len(engine.rows.slots)))
        append(cache, other, at)

    monkeypatch.setattr(SlotCache, "gather", noted_gather)
    monkeypatch.setattr(SlotCache, "append", noted_append)
    rng, sent = random.Random(1), 0
    while sent < 30 or engine.busy:
        while sent < 30 and len(engine.scheduler.unfinished) < 5:
            params = SamplingParams(max_tokens=rng.randint(2, 20))
            engine.add(Request(prompt_ids=(1, 2, 3), params=params))
            sent += 1
        engine.step()
    assert len(inserted) >= 25
    assert sum(at < rows for at, rows in inserted) >= 5, "no row has joined between others"
    assert all(rows == sorted(rows) for rows in gathered), "rows were put in order afterwards"
    assert all(len(rows) < SETTINGS.max_rows + 1 for rows in gathered)


@pytest.mark.parametrize("at", [0, 1, 2, 3, None])
@pytest.mark.parametrize("windows", [[None, None], [8, None]])
def test_rows_put_between_others_keep_what_they_hold(windows, at):
    def filled(values, columns):
        cache = SlotCache(windows, slack=4, length_step=16)
        cache.frame = Frame.exact(0, columns)
        each = mx.array(values, mx.float32)[:, None, None, None]
        held = mx.broadcast_to(each, (len(values), 2, columns, 4))
        for layer in cache.layers:
            layer.update_and_fetch(held, -held)
        return cache

    cache = filled([1.0, 2.0, 3.0], 3)
    cache.append(filled([9.0], 20), at)
    wanted = [1.0, 2.0, 3.0]
    wanted.insert(3 if at is None else at, 9.0)
    for layer in cache.layers:
        assert np.array(layer.keys)[:, 0, 0, 0].tolist() == wanted
        assert np.array(layer.values)[:, 1, 1, 2].tolist() == [-value for value in wanted]

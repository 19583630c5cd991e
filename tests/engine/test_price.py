"""Measuring the price: both numerics in turn, on a clock that counts tokens fed."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.config import Settings
from mlxcel.decide.rows import rule_of
from mlxcel.engine import price as module
from mlxcel.engine.price import measure_price
from mlxcel.runtime.batch import Batch
from tests.support import tiny


@pytest.mark.parametrize("width", [2, 4, 6])
def test_the_price_is_that_of_the_tokens_fed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    fed = [0]
    plain = Batch.verify

    def verify(self: Batch, *args: Any, **more: Any) -> Any:
        check = plain(self, *args, **more)
        fed[0] += check.states.shape[1]
        return check

    monkeypatch.setattr(Batch, "verify", verify)
    monkeypatch.setattr(module, "pass_rule", lambda model, settings: rule_of(settings))
    settings = Settings(cache_dir=tmp_path, length_step=64)
    found = measure_price(
        tiny.loaded(tiny.llama_model()), settings, width, repeats=3, clock=lambda: float(fed[0])
    )
    assert found.block == max(width, 4)
    assert found.classic.ratio == pytest.approx(found.block, rel=0.05)
    assert found.verify.ratio == pytest.approx(found.block / width, rel=0.2)
    assert (found.classic.runs, found.verify.runs, found.equal) == (3, 3, True)

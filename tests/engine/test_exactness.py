"""The exactness probe on tiny models: sound caches pass, every broken one is declined."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.config import Settings
from mlxcel.decide.exactness import veto_of
from mlxcel.decide.rows import RowRule
from mlxcel.engine import exactness
from mlxcel.engine.exactness import (
    ProbeInterrupted,
    exactness_of,
    kept_exactness,
    probe_exactness,
)
from mlxcel.engine.exactness_store import store_of
from mlxcel.errors import ConfigError
from mlxcel.hardware.host import describe
from mlxcel.models.target import CacheLayout
from mlxcel.runtime import batch as batch_module
from mlxcel.runtime.batch import Batch
from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_layers import FullLayer, KeyValueLayer, SlidingLayer
from tests.support import tiny

SETTINGS = Settings(max_width=8, length_step=64, prefill_chunk=32)
MODELS = {
    "llama": tiny.llama_model,
    "qwen2": tiny.qwen2_model,
    "qwen3": tiny.qwen3_model,
    "gemma3": tiny.gemma3_model,
    "gemma4": tiny.gemma4_model,
    "gemma4-shared": lambda: tiny.gemma4_model(shared=2),
}
SLIDING = ("gemma3", "gemma4", "gemma4-shared")


def probe(name: str, width: int = 4) -> Any:
    return probe_exactness(tiny.loaded(MODELS[name]()).target, width, SETTINGS)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [2, 3, 8])
def test_sound_models_pass(name: str, width: int) -> None:
    record = probe(name, width)
    assert record.level in ("bitwise", "token"), record.reason
    assert record.draws == (13 if name in SLIDING else 9)
    assert record.smallest_margin > 0
    assert not veto_of(record).vetoed


def test_half_precision_reports_figures() -> None:
    """Whatever the verdict is there, it rests on numbers."""
    model = tiny.llama_model()
    model.set_dtype(mx.bfloat16)
    record = probe_exactness(tiny.loaded(model).target, 4, SETTINGS)
    assert record.level in ("bitwise", "token", "divergent")
    assert record.smallest_margin >= 0


# -- forced failures -----------------------------------------------------------------


def fetch_without(columns: int) -> Any:
    """A fetch that hides the block's last keys from a block, and only from a block."""
    plain = KeyValueLayer._fetch

    def fetch(self: Any, frame: Frame) -> tuple[mx.array, mx.array]:
        keys, values = plain(self, frame)
        if frame.width == 1:
            return keys, values
        seen = mx.arange(keys.shape[2])[None, None, :, None] != frame.bound - frame.width - columns
        return keys * seen, values * seen

    return fetch


def drop_a_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyValueLayer, "_fetch", fetch_without(2))


def drop_a_key_of_both_arms(patch: pytest.MonkeyPatch) -> None:
    """Steps and blocks agree with each other: only the model's own caches tell."""
    plain = KeyValueLayer._fetch

    def fetch(self: Any, frame: Frame) -> tuple[mx.array, mx.array]:
        keys, values = plain(self, frame)
        seen = (mx.arange(keys.shape[2]) != 3)[None, None, :, None]
        return keys * seen, values * seen

    patch.setattr(KeyValueLayer, "_fetch", fetch)


def shift_rope(patch: pytest.MonkeyPatch) -> None:
    plain = KeyValueLayer.offset.fget

    def offset(self: Any) -> Any:
        frame = self._cache.frame
        return plain(self) + (1 if frame.width in (2, 3, 4) else 0)

    patch.setattr(KeyValueLayer, "offset", property(offset))


def shift_mask(patch: pytest.MonkeyPatch) -> None:
    """Every query of a block also sees its own future by one; steps have none."""
    plain = Frame.mask

    def mask(self: Frame, columns: int, **kinds: Any) -> mx.array:
        later = Frame(self.offset + 1, self.width, self.bound)
        return plain(later if self.width > 1 else self, columns, **kinds)

    patch.setattr(Frame, "mask", mask)


def hide_the_bonus(patch: pytest.MonkeyPatch) -> None:
    """A mask too strict by one."""
    plain = Frame.mask

    def mask(self: Frame, columns: int, **kinds: Any) -> mx.array:
        seen = plain(self, columns, **kinds)
        if self.width == 1:
            return seen
        own = self.positions()[:, None, :, None] == mx.arange(columns)[None, None, None]
        return seen & ~own

    patch.setattr(Frame, "mask", mask)


def rewind_wrongly(by: int) -> Any:
    """A rejected tail stays in the caches by one token, or one token too many goes."""
    plain = Batch._advance

    def advance(self: Batch, block: mx.array, *rest: Any) -> mx.array:
        accepted = plain(self, block, *rest)
        if block.shape[1] > 1:
            self.lengths = self.lengths + by
        return accepted

    def rewind(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Batch, "_advance", advance)

    rewind.__name__ = f"rewind_off_by_{by}"
    return rewind


def accept_too_much(patch: pytest.MonkeyPatch) -> None:
    plain = batch_module.count_accepted

    def count(block: mx.array, choices: mx.array, widths: mx.array) -> mx.array:
        return mx.minimum(plain(block, choices, widths) + 1, widths - 1)

    patch.setattr(batch_module, "count_accepted", count)


def write_nothing_of_drafts(patch: pytest.MonkeyPatch) -> None:
    """The last draft's key never arrives in the buffer."""
    plain = KeyValueLayer._write

    def write(self: Any, keys: mx.array, values: mx.array, frame: Frame) -> None:
        if frame.width > 1:
            last = (mx.arange(frame.width) < frame.width - 1)[None, None, :, None]
            keys, values = keys * last, values * last
        plain(self, keys, values, frame)

    patch.setattr(KeyValueLayer, "_write", write)


BROKEN = [
    drop_a_key,
    drop_a_key_of_both_arms,
    shift_rope,
    shift_mask,
    hide_the_bonus,
    rewind_wrongly(1),
    rewind_wrongly(-1),
    accept_too_much,
    write_nothing_of_drafts,
]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma4"])
@pytest.mark.parametrize("broken", BROKEN, ids=lambda fault: fault.__name__)
def test_a_broken_cache_diverges(
    name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    record = probe(name)
    assert record.level == "divergent", record
    assert record.first_draw
    veto = veto_of(record)
    assert veto.vetoed
    assert veto.reason.startswith("a block and single steps differ")


def no_slack(patch: pytest.MonkeyPatch) -> None:
    """A ring of the window alone: a rejected tail overwrites what is still seen."""
    plain = SlidingLayer.__init__

    def init(self: Any, cache: Any, window: int) -> None:
        plain(self, cache, window)
        self.ring = window

    patch.setattr(SlidingLayer, "__init__", init)


def no_window(patch: pytest.MonkeyPatch) -> None:
    """A ring of the right size whose mask forgets the window."""
    patch.setattr(SlidingLayer, "window", property(lambda self: 1 << 20, lambda self, v: None))


@pytest.mark.parametrize("broken", [no_slack, no_window], ids=lambda fault: fault.__name__)
def test_faults_that_show_only_when_the_window_wraps(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    record = probe("gemma3")
    assert record.level == "divergent", record
    assert int(record.first_draw.split()[0]) > tiny.WINDOW


def test_the_layer_where_a_difference_begins_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.loaded(tiny.llama_model(layers=4))
    plain = FullLayer.update_and_fetch

    def fetch(self: Any, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = plain(self, keys, values)
        broken = self is self._cache.layers[2] and self._cache.frame.width > 1
        return keys, values * 0.5 if broken else values

    calls = type(model.target.body.layers[0]).__call__
    monkeypatch.setattr(FullLayer, "update_and_fetch", fetch)
    # The prompt is read as a block too, so both arms differ in the block only.
    record = probe_exactness(model.target, 4, replace(SETTINGS, prefill_chunk=1))
    assert (record.level, record.layer) == ("divergent", 2)
    assert record.layer_difference > 1e-3
    assert "begins in layer 2" in record.reason
    assert type(model.target.body.layers[0]).__call__ is calls


# -- when it runs --------------------------------------------------------------------


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the probe really ran, by width."""
    ran: list[int] = []
    plain = exactness.probe_exactness

    def counted(target: Any, width: int, *rest: Any, **more: Any) -> Any:
        ran.append(width)
        return plain(target, width, *rest, **more)

    monkeypatch.setattr(exactness, "probe_exactness", counted)
    return ran


def test_a_verdict_is_kept_until_its_key_changes(tmp_path: Path, probes: list[int]) -> None:
    model, host = tiny.loaded(tiny.llama_model()), describe()
    settings = replace(SETTINGS, cache_dir=tmp_path)

    def ask(width: int = 4, **changes: Any) -> Any:
        options = {"model": model, "settings": settings, "host": host} | changes
        loaded, given = options.pop("model"), options.pop("settings")
        return exactness_of(loaded, width, given, **options)

    first = ask()
    assert ask() == first
    assert len(probes) == 1
    other = replace(model, checkpoint=replace(model.checkpoint, fingerprint="1"))
    stored = replace(model, representation=replace(model.representation, form="stored"))
    changes: list[dict[str, Any]] = [
        {"width": 3},
        {"model": other},
        {"model": stored},
        {"settings": replace(settings, numerics="invariant")},
        {"rule": RowRule(padding={4: 8})},
        {"settings": replace(settings, max_width=9)},
        {"settings": replace(settings, prefill_chunk=16)},
        {"settings": replace(settings, lean_modules=False)},
        {"host": replace(host, chip="another")},
        {"host": replace(host, versions={**host.versions, "mlx": "9"})},
        {"refresh": True},
    ]
    for count, change in enumerate(changes, 2):
        ask(**change)
        assert len(probes) == count, change
    assert replace(ask(), seconds=0.0) == replace(first, seconds=0.0)
    assert len(probes) == len(changes) + 1


def test_the_round_loops_version_is_in_the_key(
    tmp_path: Path, probes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = tiny.loaded(tiny.llama_model()), replace(SETTINGS, cache_dir=tmp_path)
    exactness_of(model, 2, settings)
    monkeypatch.setattr(exactness, "ROUND_LOOP_VERSION", exactness.ROUND_LOOP_VERSION + 1)
    exactness_of(model, 2, settings)
    assert len(probes) == 2


def test_a_damaged_record_is_probed_again(
    tmp_path: Path, probes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    model, settings = tiny.loaded(tiny.llama_model()), replace(SETTINGS, cache_dir=tmp_path)
    first = exactness_of(model, 2, settings)
    (path,) = store_of(tmp_path).folder.iterdir()
    path.write_text(path.read_text().replace(f'"{first.level}"', '"perfect"'))
    with caplog.at_level(logging.WARNING, "mlxcel"):
        again = exactness_of(model, 2, settings)
    assert (again.level, len(probes)) == (first.level, 2)
    assert "probing again" in caplog.text


def test_an_interrupted_probe_keeps_nothing(tmp_path: Path) -> None:
    model, settings = tiny.loaded(tiny.llama_model()), replace(SETTINGS, cache_dir=tmp_path)
    asked: list[int] = []

    def interrupted() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(ProbeInterrupted):
        exactness_of(model, 3, settings, rule=RowRule(), interrupted=interrupted)
    assert len(asked) == 3
    rule, host = RowRule(), describe()  # padding by default follows a profile timed just then
    assert kept_exactness(model, 3, settings, rule=rule, host=host) is None
    found = exactness_of(model, 3, settings, rule=rule, host=host)
    assert kept_exactness(model, 3, settings, rule=rule, host=host) == found


def test_a_divergence_is_kept_and_vetoes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = tiny.loaded(tiny.llama_model()), replace(SETTINGS, cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        drop_a_key(patch)
        found = exactness_of(model, 4, settings)
    assert found.level == "divergent"
    assert exactness_of(model, 4, settings) == found
    assert exactness_of(model, 4, settings, refresh=True).level != "divergent"


def test_a_probe_that_cannot_run_declines_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = tiny.loaded(tiny.llama_model()), replace(SETTINGS, cache_dir=tmp_path)

    def fail(self: Batch, *args: Any, **more: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "verify", fail)
        record = exactness_of(model, 4, settings)
    assert record.level == "unprobed"
    assert veto_of(record).reason == "not probed: the probe failed: out of memory"
    assert exactness_of(model, 4, settings).level != "unprobed"
    model.target.layout = CacheLayout(None, "the model keeps a SlowCache, which cannot be rewound")
    assert "SlowCache" in veto_of(exactness_of(model, 4, settings)).reason


@pytest.mark.parametrize("width", [0, 1, 9])
def test_a_width_out_of_bounds_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match="max_width = 8"):
        exactness_of(tiny.loaded(tiny.llama_model()), width, SETTINGS)


def test_a_window_that_no_request_can_wrap_is_not_wrapped() -> None:
    model = tiny.loaded(tiny.gemma3_model(window=512), context=256)
    assert probe_exactness(model.target, 2, SETTINGS).draws == 9

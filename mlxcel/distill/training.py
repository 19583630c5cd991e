"""Training a head: unrolled steps, two optimizers, checkpoints that survive anything."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from mlxcel.distill.batches import Batch, Batches
from mlxcel.distill.chain import Chain
from mlxcel.distill.group import Group
from mlxcel.distill.loss import LossSpec, unrolled_loss
from mlxcel.distill.optimizer import Params, TwoOptimizers, schedule
from mlxcel.errors import ConfigError, LoadError
from mlxcel.models.drafters.mtp import MTPHead, flat_weights, output_rows
from mlxcel.models.target import Target

__all__ = ["Clock", "Progress", "TrainSpec", "Trainer", "initial_weights"]

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands.

    Attributes
    ----------
    step : int
        Steps done.
    seconds : float
        Training time so far, that of interrupted runs included.
    fraction : float
        Of the schedule, 0 to 1.
    loss, agreement : float
        Of the first draft, on a part of the last batch.
    tokens_per_second : float
        Text tokens trained on.
    """

    step: int
    seconds: float
    fraction: float
    loss: float
    agreement: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """How to train; see `Options` for the first ones.

    Attributes
    ----------
    dtype : mx.Dtype
        Type the head computes in; its master weights are float32.
    loss : LossSpec
        How the loss is taken.
    compiled : bool
        Whether the step is compiled.
    recorded : dict
        What a checkpoint must agree with to be resumed.
    """

    unroll: int
    muon_lr: float
    adam_lr: float
    weight_decay: float
    minutes: float | None
    steps: int | None
    seed: int
    checkpoint_seconds: float
    dtype: mx.Dtype
    loss: LossSpec
    compiled: bool
    recorded: dict[str, Any]


def initial_weights(head: MTPHead, seed: int) -> Params:
    """Initial float32 weights: normal with variance 1 / (3 inputs), norms at one."""
    flat = sorted(flat_weights(head).items())
    keys = mx.random.split(mx.random.key(seed), len(flat))
    weights: Params = {}
    for (name, value), key in zip(flat, keys, strict=True):
        if value.ndim == 2:
            scale = (3 * value.shape[1]) ** -0.5
            weights[name] = mx.random.normal(value.shape, key=key) * scale
        elif name.endswith("bias"):
            weights[name] = mx.zeros(value.shape)
        else:
            weights[name] = mx.ones(value.shape)
    return weights


class Trainer:
    """One training run.

    Parameters
    ----------
    head : MTPHead
        The head; its draft vocabulary is that of the loss.
    target : Target
        Its target.
    batches : Batches
        The text.
    spec : TrainSpec
        How to train.
    checkpoint : Path
        File of the checkpoint.
    clock : callable
        Seconds, monotonic.
    group : Group, optional
        Processes that train together; the first one's clock and checkpoint count.
    """

    def __init__(
        self,
        head: MTPHead,
        target: Target,
        batches: Batches,
        spec: TrainSpec,
        checkpoint: Path,
        clock: Clock = time.monotonic,
        group: Group | None = None,
    ) -> None:
        self._group = group or Group()
        self.head, self.batches, self.spec = head, batches, spec
        self._checkpoint, self._clock = checkpoint, clock
        ids = head.draft_ids
        every = mx.arange(target.vocab_size, dtype=mx.uint32)
        self._rows = output_rows(target, every if ids is None else ids).astype(spec.loss.dtype)
        self._optimizers = TwoOptimizers(spec.muon_lr, spec.adam_lr, spec.weight_decay)
        self.params = initial_weights(head, spec.seed)
        self.state = self._optimizers.init(self.params)
        self.step, self.seconds = 0, 0.0
        mx.eval(self.params, self.state, self._rows)
        self._run = mx.compile(self._update) if spec.compiled else self._update

    def _surrogate(
        self, params: Params, batch: Batch, rows: mx.array
    ) -> tuple[mx.array, mx.array]:
        hidden, tokens, places, weights = batch
        cast = [(name, value.astype(self.spec.dtype)) for name, value in params.items()]
        self.head.update(tree_unflatten(cast))
        chain, outputs = Chain(self.head), []
        state = hidden.astype(self.spec.dtype)
        for k in range(self.spec.unroll):
            state = chain.step(state, mx.roll(tokens, -(k + 1), 1))  # past the end: weight 0
            outputs.append(state)
        return unrolled_loss(outputs, hidden, places, weights, rows, self.spec.loss)

    def _update(
        self,
        params: Params,
        state: dict[str, Any],
        batch: Batch,
        rows: mx.array,
        factor: mx.array,
    ) -> tuple[Params, dict[str, Any], mx.array]:
        (_, figures), gradients = mx.value_and_grad(self._surrogate)(params, batch, rows)
        gradients = self._group.mean(gradients)
        params, state = self._optimizers.apply(params, gradients, state, factor)
        return params, state, figures

    def advance(self, fraction: float) -> mx.array:
        """One step, enqueued; returns its figures, float32 ``(2, unroll)``."""
        factor = mx.array(schedule(fraction), mx.float32)
        batch = self.batches.at(self.step)
        self.params, self.state, figures = self._run(
            self.params, self.state, batch, self._rows, factor
        )
        mx.async_eval(self.params, self.state, figures)
        self.step += 1
        return figures

    def fraction(self) -> float:
        """How far the schedule is."""
        parts = []
        if self.spec.steps is not None:
            parts.append(self.step / max(self.spec.steps, 1))
        if self.spec.minutes is not None:
            parts.append(self.seconds / max(60 * self.spec.minutes, 1e-9))
        return max(parts)

    def train(self, report: Callable[[Progress], None] | None = None) -> None:
        """Train to the end of the schedule, writing checkpoints on the way."""
        began, before = self._clock(), self.seconds
        first, saved = self.step, began
        last: tuple[mx.array, mx.array] | None = None
        while (fraction := self.fraction()) < 1.0:
            figures = self.advance(fraction)
            told = self._group.first(before + self._clock() - began)
            mx.async_eval(told)
            if last is not None:
                mx.eval(last)
                if report is not None:
                    self._report(report, last[0], fraction, self.seconds - before, first)
            now = self._clock()
            if self._group.alone:
                self.seconds = before + now - began
            elif last is not None:  # every process must follow the same schedule
                self.seconds = float(last[1])
            last = figures, told
            if now - saved >= self.spec.checkpoint_seconds:
                self.save()
                saved = self._clock()
                if self._group.alone:
                    self.seconds = before + saved - began
        self.save()
        self.install()

    def _report(
        self, report: Callable[[Progress], None], figures: mx.array, fraction: float,
        seconds: float, first: int,
    ) -> None:  # fmt: skip
        loss, agreement = (float(v) for v in np.array(figures)[:, 0])
        done = (self.step - first) * self.batches.tokens_per_batch
        rate = done / seconds if seconds > 0 else 0.0
        report(Progress(self.step, self.seconds, fraction, loss, agreement, rate))

    def install(self) -> None:
        """Put the trained weights into the head, in float32."""
        self.head.update(tree_unflatten(list(self.params.items())))
        mx.eval(self.head.parameters())

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        if self._group.rank:
            return
        arrays = {f"params/{name}": value for name, value in self.params.items()}
        arrays |= {f"state/{name}": v for name, v in _flat(self.state).items()}
        facts = {"step": self.step, "seconds": self.seconds, "recorded": self.spec.recorded}
        temporary = self._checkpoint.with_name("unfinished.safetensors")
        mx.save_safetensors(str(temporary), arrays, metadata={"mlxcel": json.dumps(facts)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self._checkpoint)

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one.

        Raises
        ------
        ConfigError
            It was made with other options.
        LoadError
            It cannot be read.
        """
        if not self._checkpoint.exists():
            return False
        try:
            loaded: Any = mx.load(str(self._checkpoint), return_metadata=True)
            arrays, metadata = loaded
            facts = json.loads(metadata["mlxcel"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise LoadError(f"{self._checkpoint}: cannot be read: {error}") from error
        wanted = json.loads(json.dumps(self.spec.recorded))
        for name, value in wanted.items():
            if facts["recorded"].get(name) != value:
                raise ConfigError(
                    f"{self._checkpoint}: made with {name} = {facts['recorded'].get(name)!r}, "
                    f"not {value!r}; give the same options or another folder", param=name,
                )  # fmt: skip
        self.params = {name: arrays[f"params/{name}"] for name in self.params}
        flat = _flat(self.state)
        self.state = _nested({name: arrays[f"state/{name}"] for name in flat})
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        mx.eval(self.params, self.state)
        return True


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, mx.array]:
    """Nested dictionaries by paths; parameter names contain dots, so / separates."""
    out: dict[str, mx.array] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}/")
        else:
            out[prefix + name] = value
    return out


def _nested(flat: dict[str, mx.array]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = value
    return tree

"""Muon for matrices, AdamW for the rest, as pure functions of flat trees.

Both come from `mlx.optimizers`; Muon is Jordan et al. 2024. State and parameters go in and
come out as flat dictionaries, so that a step can be compiled and a checkpoint is a plain
list of arrays.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

__all__ = ["Params", "TwoOptimizers", "schedule"]

Params = dict[str, mx.array]
WARM_UP, FLOOR = 0.03, 0.02
CLIP = 1.0


def schedule(progress: float) -> float:
    """Factor of the peak learning rate: 3 % linear warm-up, then a cosine down to 2 %."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.01)
    angle = math.pi * (progress - WARM_UP) / (1 - WARM_UP)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(angle))


class TwoOptimizers:
    """Both optimizers over one flat dictionary of float32 parameters."""

    def __init__(self, muon_lr: float, adam_lr: float, weight_decay: float) -> None:
        # MLX's own decay is added to the gradient, which orthogonalisation then blows up.
        self._decay = weight_decay
        self._rates = {"muon": muon_lr, "adam": adam_lr}
        self._optimizers: dict[str, Any] = {
            "muon": optim.Muon(muon_lr, weight_decay=0.0),
            "adam": optim.AdamW(adam_lr, betas=[0.9, 0.95], weight_decay=0.0, bias_correction=True),
        }

    def init(self, params: Params) -> dict[str, Any]:
        """State before the first step."""
        state = {}
        for name, part in self._parts(params).items():
            optimizer = self._optimizers[name]
            optimizer.init(part)
            state[name] = dict(optimizer.state)
        return state

    def apply(
        self, params: Params, gradients: Params, state: dict[str, Any], factor: mx.array
    ) -> tuple[Params, dict[str, Any]]:
        """Clipped step; returns new parameters and state.

        Parameters
        ----------
        params, gradients : dict
            Flat, float32.
        state : dict
            From `init` or the last step.
        factor : mx.array
            Scalar of `schedule`.
        """
        clipped, _ = optim.clip_grad_norm(gradients, CLIP)
        new: Params = {}
        after: dict[str, Any] = {}
        for name, part in self._parts(params).items():
            optimizer = self._optimizers[name]
            if name == "muon" and self._decay:
                kept = 1.0 - factor * (self._rates[name] * self._decay)
                part = {k: v * kept for k, v in part.items()}
            optimizer.state = {**state[name], "learning_rate": factor * self._rates[name]}
            new |= optimizer.apply_gradients({k: clipped[k] for k in part}, part)
            after[name] = dict(optimizer.state)
        return {name: new[name] for name in params}, after

    @staticmethod
    def _parts(params: Params) -> dict[str, Params]:
        return {
            "muon": {k: v for k, v in params.items() if v.ndim == 2},
            "adam": {k: v for k, v in params.items() if v.ndim != 2},
        }

"""What a distillation is asked to do; checked when made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxcel.errors import ConfigError

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one distillation.

    Attributes
    ----------
    target : str
        Folder, hub id, GGUF file or ``"demo"``.
    out : Path
        Folder of the head, its text and its checkpoint.
    minutes : float or None
        Training time; the schedule follows the clock.
    steps : int or None
        Training steps; the schedule follows the step, so a run can be repeated exactly.
    tokens : int
        Tokens of training text to be written, all turns and templates included.
    draft_vocab : int
        Size of the draft vocabulary: the most frequent ids of the text.
    seed : int
        Seed of text, initial weights and data order.
    rows : int
        Rows sampled together; 0 chooses by memory.
    train_rows : int
        Rows of a training step; 0 chooses by backend.
    length : int
        Tokens of a row.
    turn_tokens : int
        Longest turn of the training text; a longer one is cut. Small models fall into loops,
        which teach nothing.
    eval_tokens : int
        Longest answer of an evaluation prompt.
    eval_prompts : int
        Held-out prompts of ours that are evaluated, at most 48; each at three temperatures.
    prompts : Path or None
        File of the user's own prompts.
    unroll : int
        Chained steps that are trained.
    decay : float
        Weight of each step relative to the one before.
    muon_lr, adam_lr : float
        Peak learning rates of matrices and of norms.
    weight_decay : float
        Of the matrices, decoupled: each step takes learning rate times this from them.
    checkpoint_seconds : float
        Time between two checkpoints of the training.
    block_width : int
        Width recorded as the one the head is meant for.
    compiled : bool
        Whether the training step is compiled: hundreds of kernels at the first step on CUDA.
    """

    target: str
    out: Path
    minutes: float | None = None
    steps: int | None = None
    tokens: int = 20_000_000
    draft_vocab: int = 16_384
    seed: int = 0
    rows: int = 0
    train_rows: int = 0
    length: int = 512
    turn_tokens: int = 280
    eval_tokens: int = 256
    eval_prompts: int = 48
    prompts: Path | None = None
    unroll: int = 4
    decay: float = 0.8
    muon_lr: float = 2e-2
    adam_lr: float = 2e-3
    weight_decay: float = 0.02
    checkpoint_seconds: float = 30.0
    block_width: int = 4
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.minutes is None and self.steps is None:
            raise ConfigError("give minutes or steps of training", param="minutes")
        bounds = {
            "minutes": (1e-4, 1e5), "steps": (0, 10**9), "tokens": (1, 10**12),
            "draft_vocab": (2, 2**31), "seed": (0, 2**63 - 1), "rows": (0, 2**16),
            "train_rows": (0, 2**16), "length": (16, 2**16), "turn_tokens": (1, 2**16),
            "eval_tokens": (8, 2**14),
            "eval_prompts": (1, 48), "unroll": (1, 8), "block_width": (2, 16), "decay": (0.0, 1.0),
            "muon_lr": (0.0, 10.0), "adam_lr": (0.0, 10.0), "weight_decay": (0.0, 10.0),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} must be {low} to {high}, got {value}", param=name)

    def recorded(self) -> dict[str, Any]:
        """Everything that decides the text and the weights, for files and comparisons."""
        kept = asdict(self)
        for name in ("out", "checkpoint_seconds", "eval_tokens", "eval_prompts", "block_width",
                     "compiled"):  # fmt: skip
            del kept[name]
        kept["prompts"] = None if self.prompts is None else self.prompts.name
        return kept

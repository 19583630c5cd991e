"""What a drafter is to the engine.

A drafter proposes; it can never change the output. One that works on the host needs the
last round's tokens and makes rounds wait for each other; one on the device does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.engine.plan import Plan
from mlxcel.runtime.batch import Batch, Check
from mlxcel.runtime.prefill import Prefill
from mlxcel.runtime.row_copy import Resume, RowCopy

__all__ = ["Draft", "Drafter", "Preparation", "Tokens"]

Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals of one round: uint32 ``(rows, width - 1)`` or none, and each row's width."""

    tokens: mx.array | None
    widths: list[int]


class Preparation(Protocol):
    """A drafter's own work on a prompt, advanced beside the target's prefill."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""

    def advance(self, target: Prefill) -> None:
        """Do one chunk of it, right after the target's chunk."""

    def copy(self) -> RowCopy | None:
        """Copy what has been prepared so far; ``None`` where nothing is kept of this row."""


class Drafter(Protocol):
    """Proposes tokens for the rows of a batch."""

    kind: str
    on_host: bool
    fingerprint: str  # of everything that changes what it proposes, for the policy's verdicts
    weights: str  # how its weights are held, in words; empty where it has none
    sequential: bool  # whether acceptance by position is the same for every block width
    keeps_rows: bool  # whether it has caches of its own, row by row beside the batch

    def prepare(
        self, prompt: Sequence[int], chunk: int, speculate: bool, resume: Resume | None = None
    ) -> Preparation:
        """Begin with a prompt; ``speculate`` is false for a row that only keeps its place."""

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """A prepared row joins the batch, below the others, with its first output token."""

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows of the batch stay, in this order."""

    def draft(self, batch: Batch, plan: Plan) -> Draft:
        """Propose up to each row's planned width."""

    def absorb(self, check: Check, plan: Plan) -> list[mx.array]:
        """Take in a verify pass on the device; return arrays to be evaluated with it."""

    def observe(self, slots: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        """The first ``counts[r]`` tokens of row r were emitted for ``slots[r]``."""

    def leave(self, slot: int) -> None:
        """The request in this slot has ended."""

    def copy_row(self, slot: int, row: int, length: int, written: int) -> RowCopy | None:
        """Copy what is kept of the first ``length`` tokens of a row, perhaps of one less.

        ``None`` where nothing is kept of this row. ``written`` is as in `RowCopy.of`.
        """

    def position_bytes(self) -> list[tuple[int, int | None]]:
        """Bytes of one position of a row in each of its caches, see `position_bytes`."""

    @property
    def nbytes(self) -> int:
        """Bytes of caches and indices held."""

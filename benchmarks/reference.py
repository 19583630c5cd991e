"""Reference kernels: fixed work that no change of ours can touch, timed beside each benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from mlxcel.runtime.representation import detect_backend

__all__ = ["Reference", "loop", "product"]

TURNS = 100_000
PRODUCTS = {"cpu": (512, 2), "metal": (2048, 8), "cuda": (4096, 16)}
"""Side of the square matrices and products in a row: some milliseconds each."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A kernel with its name, which has its size in it.

    Attributes
    ----------
    name : str
        For baselines: another name is another reference.
    work : callable
        Does it once.
    clock : callable
        Seconds; the benchmark has to have the same one.
    """

    name: str
    work: Callable[[], None]
    clock: Callable[[], float]

    def __call__(self) -> float:
        """Do it once; seconds."""
        began = self.clock()
        self.work()
        return self.clock() - began


def loop() -> Reference:
    """A loop of Python's interpreter: for what runs on the host, in this thread alone.

    Timed by the thread's processor time, which other processes do not get into.
    """

    def work() -> None:
        total = 0
        for turn in range(TURNS):
            total += turn & 7

    return Reference(f"{TURNS} turns of Python, thread time", work, time.thread_time)


def product() -> Reference:
    """Products of square float32 matrices, each waiting for the last: for what runs on MLX.

    Timed by the clock on the wall: MLX computes in other threads, and on other devices.
    """
    side, count = PRODUCTS[detect_backend()]
    left, right = (mx.random.normal((side, side), key=mx.random.key(seed)) for seed in (0, 1))
    right = right / side**0.5  # so that the values neither grow nor vanish
    mx.eval(left, right)

    def work() -> None:
        out = left
        for _ in range(count):
            out = out @ right
        mx.eval(out)

    return Reference(f"{count} float32 products {side} x {side}", work, time.perf_counter)

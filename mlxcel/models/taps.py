"""Hidden states between the layers of a model, taken from the pass that runs anyway.

A tapped layer is of a subclass of its own class and shares everything with it, so that names of
parameters, checks of kinds and the model's own loop over its layers stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxcel.errors import LoadError

__all__ = ["Taps"]


class _Slot:
    """Where a layer leaves what it puts out; no array of a module's own, as that is a parameter."""

    def __init__(self) -> None:
        self.found: Any = None


@functools.cache
def _tapped(kind: Any) -> type:
    """The class of a layer, with its output kept aside."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = kind.__call__(self, *args, **kwargs)
        self.tap_slot.found = out
        return out

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


class Taps:
    """What lies behind some layers of a model, pass by pass.

    Parameters
    ----------
    layers : sequence of nn.Module
        All decoder layers, in order.
    after : sequence of int
        Behind how many of them a hidden state is taken; 1 to all, rising.

    Raises
    ------
    LoadError
        There are no such places.
    """

    def __init__(self, layers: Sequence[Any], after: Sequence[int]) -> None:
        self.after = tuple(after)
        rising = sorted(set(self.after)) == list(self.after)
        if not self.after or not rising or self.after[0] < 1 or self.after[-1] > len(layers):
            raise LoadError(
                f"hidden states behind {list(self.after)} layers cannot be taken; the places must "
                f"rise from 1 to {len(layers)}, the target's layers"
            )
        self._layers = [layers[count - 1] for count in self.after]
        for layer in self._layers:
            kind: Any = type(layer)
            layer.tap_slot = _Slot()
            layer.__class__ = _tapped(kind)

    def remove(self) -> None:
        """Give the layers their own class back."""
        for layer in self._layers:
            layer.__class__ = type(layer).__mro__[1]
            del layer.tap_slot

    def take(self) -> mx.array:
        """Hidden states of the last pass, lowest layer first, ``(rows, width, taps * hidden)``.

        They are given out once: nothing of a pass is kept longer than it is needed.

        Raises
        ------
        LoadError
            The layers put out something else than one hidden state.
        """
        found = [layer.tap_slot.found for layer in self._layers]
        for layer in self._layers:
            layer.tap_slot.found = None
        for each in found:
            if not isinstance(each, mx.array):
                raise LoadError(
                    f"a layer of the target puts out a {type(each).__name__}, not one hidden "
                    "state; no drafter can read it"
                )
        return mx.concatenate(found, axis=-1)

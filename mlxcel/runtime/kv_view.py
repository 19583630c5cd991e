"""Reading a layer's keys and values without writing: for drafters that share the target's."""

from __future__ import annotations

import mlx.core as mx

from mlxcel.runtime.frame import Frame
from mlxcel.runtime.kv_cache import FullLayer, SlidingLayer

__all__ = ["view"]


def view(
    layer: FullLayer | SlidingLayer, frame: Frame, window: int | None = None
) -> tuple[mx.array, mx.array, mx.array | None]:
    """Keys and values that the token of a frame sees.

    What a rejected draft has left behind lies beyond the token and stays hidden: in a ring too,
    where it has overwritten nothing that the window still reaches, since a ring has the largest
    block as slack.

    Parameters
    ----------
    layer : FullLayer or SlidingLayer
        Of a slot cache.
    frame : Frame
        One token per row, the last one that counts.
    window : int, optional
        Newest tokens that are seen of a sliding layer, at most one more than its window has;
        its window by default.

    Returns
    -------
    tuple
        Keys and values ``(rows, kv_heads, columns, head_dim)``, and a bool mask
        ``(rows, 1, 1, columns)``, ``None`` where every column is seen.

    Raises
    ------
    ValueError
        The window is larger than the ring can serve, or nothing has been written yet.
    """
    if layer.keys is None or layer.values is None:
        raise ValueError("a layer without keys has nothing to be seen")
    if layer.window is not None:
        window = layer.window if window is None else window
        if window > layer.window + 1:
            raise ValueError(
                f"a ring for a window of {layer.window} tokens cannot show the newest {window}"
            )
    else:
        window = None
    columns = min(layer.visible_columns(frame), layer.capacity)
    keys, values = layer.keys[:, :, :columns], layer.values[:, :, :columns]
    if frame.is_exact and (window is None or frame.bound <= window):
        return keys, values, None
    return keys, values, frame.mask(columns, ring=layer.ring, window=window)

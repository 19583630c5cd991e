"""From a name or a folder to a model that is ready to run on this host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_next
from mlx_lm.utils import _get_classes, load_config, load_tokenizer
from mlx_lm.utils import load_model as load_mlx_model

from mlxcel.errors import LoadError
from mlxcel.hardware.host import require_mlx
from mlxcel.models.drafters.published_mtp import head_name
from mlxcel.models.gemma4_config import complete_config
from mlxcel.models.lean import lean_for
from mlxcel.models.target import Target
from mlxcel.runtime.checkpoint import Checkpoint, resolve
from mlxcel.runtime.representation import (
    Preference,
    Representation,
    detect_backend,
    represent,
)

__all__ = ["LoadedModel", "check_same_vocabulary", "load_checkpoint", "open_lazily"]

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A target with its tokenizer, and how its weights are held.

    ``tokenizer`` is mlx-lm's ``TokenizerWrapper``.
    """

    target: Target
    tokenizer: Any
    checkpoint: Checkpoint
    representation: Representation


def open_lazily(
    name: str | Path, *, cache_dir: Path, progress: Progress | None = None
) -> tuple[Checkpoint, nn.Module, dict[str, Any]]:
    """Find a checkpoint and build its model; no weight is read until it is used.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    """
    require_mlx()
    checkpoint = resolve(name, cache_dir=cache_dir, progress=progress)
    try:
        told = complete_config(load_config(checkpoint.path), str(checkpoint.path / "config.json"))
        model, config = load_mlx_model(
            checkpoint.path, lazy=True, model_config=told, get_model_classes=_classes
        )
    except (
        ValueError, KeyError, TypeError, FileNotFoundError, RuntimeError, ArithmeticError,
    ) as error:  # fmt: skip
        raise LoadError(f"{checkpoint.path}: {error}") from error
    return checkpoint, model, config


def _classes(config: dict[str, Any]) -> tuple[type, type]:
    """mlx-lm's classes of a model, which leaves out a head that the checkpoint has kept.

    mlx-lm drops it from original checkpoints of Qwen3-Next, but not from converted ones.
    """
    model, args = _get_classes(config)
    if model is not qwen3_next.Model:
        return model, args

    def sanitize(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        kept = {name: value for name, value in weights.items() if head_name(name) is None}
        return model.sanitize(self, kept)  # type: ignore[no-any-return]

    return type(model.__name__, (model,), {"sanitize": sanitize}), args


def load_checkpoint(
    name: str | Path,
    *,
    cache_dir: Path,
    weights: str = "auto",
    prefer: Callable[[nn.Module, dict[str, Any]], Preference] | None = None,
    lean: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer on this thread, which must also run it.

    Parameters
    ----------
    name : str or Path
        Folder, hub id, GGUF file or ``"demo"``.
    cache_dir : Path
        Where converted checkpoints are kept.
    weights : {"auto", "stored", "dense"}
        See `represent`.
    prefer : callable, optional
        Says from model and config which form is faster here; asked for ``"auto"``.
    lean : bool
        Whether to take the cheaper modules of this backend, see `lean_for`.
    progress : callable, optional
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    """
    checkpoint, model, config = open_lazily(name, cache_dir=cache_dir, progress=progress)
    ask = None if prefer is None else partial(prefer, model, config)
    representation = represent(model, weights, prefer=ask)
    if lean:
        lean_for(model, detect_backend())
    try:
        eos = config.get("eos_token_id")
        tokenizer = load_tokenizer(checkpoint.path, eos_token_ids=eos)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise LoadError(f"{checkpoint.path}: the tokenizer cannot be read: {error}") from error
    mx.eval(model.parameters())
    log.info("loaded %s (%s)", checkpoint.name, representation.summary)
    return LoadedModel(Target(model, config), tokenizer, checkpoint, representation)


def check_same_vocabulary(target: LoadedModel, drafter: LoadedModel) -> None:
    """Refuse a drafter whose token ids mean other texts.

    Ids above the shorter vocabulary may be padding and are tolerated on either side if they
    stand for no text.

    Raises
    ------
    LoadError
        Names the first id on which the two differ.
    """
    ours: dict[str, int] = target.tokenizer.get_vocab()
    theirs: dict[str, int] = drafter.tokenizer.get_vocab()
    if ours == theirs:
        return
    mine = {token_id: text for text, token_id in ours.items()}
    other = {token_id: text for text, token_id in theirs.items()}
    for token_id in sorted(mine.keys() | other.keys()):
        a, b = mine.get(token_id), other.get(token_id)
        if a != b:
            raise LoadError(
                f"drafter {drafter.checkpoint.name} has another vocabulary than target "
                f"{target.checkpoint.name}: id {token_id} is {b!r} there and {a!r} here; "
                "take a drafter made for this target"
            )

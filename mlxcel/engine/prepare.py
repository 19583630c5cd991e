"""Building an engine from names: target, drafter and settings."""

from __future__ import annotations

from pathlib import Path

from mlxcel.config import Settings
from mlxcel.engine.drafters import Drafter, LookupDrafter, ModelDrafter
from mlxcel.engine.engine import Engine
from mlxcel.errors import LoadError
from mlxcel.runtime.draft import DraftModel
from mlxcel.runtime.loader import (
    LoadedModel,
    Progress,
    check_same_vocabulary,
    load_checkpoint,
)

__all__ = ["build_engine", "make_drafter"]


def build_engine(
    target: str | Path,
    drafter: str | Path | None,
    settings: Settings,
    progress: Progress | None = None,
) -> Engine:
    """Load target and drafter on this thread and make an engine of them.

    Parameters
    ----------
    target : str or Path
        Folder, hub id, GGUF file or ``"demo"``.
    drafter : str, Path or None
        ``"lookup"``, ``"none"`` or ``None``, or a draft model as for ``target``.
    settings : Settings
        Limits, steps and the form of the weights.
    progress : callable, optional
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file and what is wrong.
    """
    model = load_checkpoint(
        target, cache_dir=settings.cache_dir, weights=settings.weights, progress=progress
    )
    return Engine(model, make_drafter(drafter, model, settings, progress), settings)


def make_drafter(
    name: str | Path | None,
    model: LoadedModel,
    settings: Settings,
    progress: Progress | None = None,
) -> Drafter | None:
    """Make the drafter of this name for a loaded target; see `build_engine`."""
    if name is None or name == "none":
        return None
    if name == "lookup":
        return LookupDrafter(settings.max_rows + 1)
    draft = load_checkpoint(
        name, cache_dir=settings.cache_dir, weights=settings.weights, progress=progress
    )
    check_same_vocabulary(model, draft)
    if draft.target.layout.windows is None:
        raise LoadError(
            f"drafter {draft.checkpoint.name} cannot draft: {draft.target.layout.reason}"
        )
    chain = DraftModel(draft.target, slack=settings.max_width, length_step=settings.length_step)
    return ModelDrafter(chain)

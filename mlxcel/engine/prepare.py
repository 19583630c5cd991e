"""Building an engine from names: target, drafter and settings."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn

from mlxcel.assets import DEMO_DRAFTER
from mlxcel.config import Settings
from mlxcel.engine.assistant_drafter import AssistantDrafter
from mlxcel.engine.drafter_form import quantize_drafter
from mlxcel.engine.drafters import Drafter, LookupDrafter, ModelDrafter, MtpDrafter
from mlxcel.engine.engine import Engine
from mlxcel.engine.governor import Governor
from mlxcel.engine.served_form import pass_rule, preference
from mlxcel.errors import LoadError
from mlxcel.hardware.memory import device_bytes
from mlxcel.models.drafters import family_of
from mlxcel.models.drafters.mtp import load_mtp
from mlxcel.models.lean import lean_for
from mlxcel.runtime.assistant import AssistantChain
from mlxcel.runtime.assistant_files import load_assistant
from mlxcel.runtime.checkpoint import find_folder, fingerprint_of
from mlxcel.runtime.draft import DraftModel
from mlxcel.runtime.eagle_files import eagle_by_tensors, load_eagle
from mlxcel.runtime.loader import (
    LoadedModel,
    Progress,
    check_same_vocabulary,
    load_checkpoint,
)
from mlxcel.runtime.mtp import MtpChain
from mlxcel.runtime.mtp_files import load_published_mtp
from mlxcel.runtime.representation import detect_backend
from mlxcel.runtime.weight_files import read_weight_files

__all__ = ["build_engine", "load_model", "make_drafter", "mtp_policy"]

log = logging.getLogger(__name__)


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
        ``"lookup"``, ``"demo"`` (the head that comes with the package), ``"mtp"`` (the head in
        the target's own checkpoint) or ``"mtp:NAME"`` (in the checkpoint of this folder or hub
        id), ``"none"`` or ``None``, a folder or hub id of a drafter made for the target (by
        ``mlxcel distill``, a Gemma 4 assistant, an EAGLE head), or a draft model as for ``target``.
    settings : Settings
        Limits, steps and the form of the weights.
    progress : callable, optional
        Called with a label, the amount done and the total.

    Raises
    ------
    LoadError
        Names the file and what is wrong.
    """
    model = load_model(target, settings, progress)
    made = make_drafter(drafter, model, settings, progress)
    if settings.cache_bytes is None:
        settings = replace(settings, cache_bytes=device_bytes(detect_backend()) // 2)
    rule = functools.cache(lambda: pass_rule(model, settings))
    governor = None
    if made is not None:
        governor = Governor.of(model, made, settings, rule, drafter_name=_short(drafter))
    return Engine(model, made, settings, governor=governor, rule=rule)


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
    if isinstance(name, str) and (name == "mtp" or name.startswith("mtp:")):
        return _published_head(_head_folder(name, model), model, settings)
    folder = DEMO_DRAFTER if name == "demo" else find_folder(name)
    made = None if folder is None else _made_for_target(folder, model, settings)
    return made or _draft_model(name, model, settings, progress)


def _made_for_target(folder: Path, model: LoadedModel, settings: Settings) -> Drafter | None:
    """The drafter in a folder; ``None`` where it holds a model that stands by itself."""
    found = family_of(folder)
    if found is None:
        return None if eagle_by_tensors(folder) is None else _eagle(folder, model, settings)
    make = {
        "mtp": _mtp_head,
        "published_mtp": _published_head,
        "assistant": _assistant,
        "eagle": _eagle,
    }
    return make[found[1].kind](folder, model, settings)


def _mtp_head(folder: Path, model: LoadedModel, settings: Settings) -> Drafter:
    """A head made by ``mlxcel distill``."""
    head = load_mtp(folder, model.target)
    form = quantize_drafter(head, model, settings)
    _warn_of_another_target(folder, model)
    _lean(head, settings)
    chain = MtpChain(head, slack=settings.max_width, length_step=settings.length_step)
    drafter = MtpDrafter(chain, fingerprint=f"{form.key} {_digest(folder)}")
    drafter.weights = form.summary
    return drafter


def _head_folder(name: str, model: LoadedModel) -> Path:
    """Folder of the checkpoint that ``"mtp"`` or ``"mtp:NAME"`` means."""
    source = name.removeprefix("mtp").removeprefix(":")
    if not source:
        return model.checkpoint.path
    folder = find_folder(source)
    if folder is None:
        raise LoadError(
            f"drafter {name!r}: {source!r} is no folder here, and no hub id (org/name)"
        )
    return folder


def _published_head(folder: Path, model: LoadedModel, settings: Settings) -> Drafter:
    """The head that a checkpoint was published with."""
    head, files = load_published_mtp(folder, model.target)
    form = quantize_drafter(head, model, settings)
    _lean(head, settings)
    chain = MtpChain(head, slack=settings.max_width, length_step=settings.length_step)
    drafter = MtpDrafter(chain, fingerprint=f"{form.key} {fingerprint_of(folder, files)}")
    drafter.weights = form.summary
    return drafter


def _eagle(folder: Path, model: LoadedModel, settings: Settings) -> Drafter:
    """An EAGLE-1 or EAGLE-3 head."""
    head, files = load_eagle(folder, model.target)
    form = quantize_drafter(head, model, settings)
    _lean(head, settings)
    chain = MtpChain(head, slack=settings.max_width, length_step=settings.length_step)
    kind = "eagle3" if head.taps else "eagle"
    drafter = MtpDrafter(chain, kind, fingerprint=f"{form.key} {fingerprint_of(folder, files)}")
    drafter.weights = form.summary
    return drafter


def _assistant(folder: Path, model: LoadedModel, settings: Settings) -> Drafter:
    """A Gemma 4 assistant."""
    assistant = load_assistant(folder, model.target)
    form = quantize_drafter(assistant, model, settings)
    _lean(assistant, settings)
    position = settings.assistant_position
    digest = fingerprint_of(folder, read_weight_files(folder))
    drafter = AssistantDrafter(
        AssistantChain(assistant, position=position),
        fingerprint=f"{form.key} {position} {digest}",
    )
    drafter.weights = form.summary
    return drafter


def _draft_model(
    name: str | Path, model: LoadedModel, settings: Settings, progress: Progress | None
) -> Drafter:
    """A model that stands by itself."""
    # Its form is decided below, and cheaper modules are made of what is served.
    plain = replace(settings, lean_modules=False)
    draft = load_model(name, plain, progress, verify_share=0.0)
    layout = draft.target.layout
    if layout.windows is None or layout.states:
        # A draft model steps back by one token each round.
        reason = layout.reason or "it has recurrent layers, whose state cannot be stepped back"
        raise LoadError(f"drafter {draft.checkpoint.name} cannot draft: {reason}")
    check_same_vocabulary(model, draft)
    form = quantize_drafter(draft.target.model, model, settings)
    _lean(draft.target.model, settings)
    chain = DraftModel(draft.target, slack=settings.max_width, length_step=settings.length_step)
    key = f" {form.key}" if form.bits else ""
    drafter = ModelDrafter(chain, fingerprint=f"{draft.checkpoint.fingerprint}{key}")
    drafter.weights = form.summary if form.bits else draft.representation.summary
    return drafter


def _lean(drafter: nn.Module, settings: Settings) -> None:
    if settings.lean_modules:
        lean_for(drafter, detect_backend())


def load_model(
    name: str | Path,
    settings: Settings,
    progress: Progress | None = None,
    *,
    verify_share: float = 0.5,
) -> LoadedModel:
    """Load a model in the form that the settings, or else the kernel profile, ask for.

    Parameters
    ----------
    name, settings, progress
        As for `build_engine`.
    verify_share : float
        Share of its passes that are verifies; a drafter has none.

    Raises
    ------
    LoadError
        Names the file and what is wrong.
    """
    return load_checkpoint(
        name,
        cache_dir=settings.cache_dir,
        weights=settings.weights,
        prefer=preference(settings, verify_share=verify_share),
        lean=settings.lean_modules,
        progress=progress,
    )


def mtp_policy(engine: Engine) -> list[dict[str, Any]]:
    """What the policy of an engine's pairing rests on; empty where nobody governs it."""
    governor = engine.scheduler.governor
    return [] if governor is None else governor.snapshot()


def _short(name: str | Path | None) -> str:
    """What people call a drafter: a folder by its last part."""
    return Path(name).resolve().name if name and Path(name).exists() else str(name)


def _digest(folder: Path) -> str:
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _warn_of_another_target(folder: Path, model: LoadedModel) -> None:
    made_for = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("target")
    fingerprint = made_for.get("fingerprint") if isinstance(made_for, dict) else None
    if fingerprint not in (None, model.checkpoint.fingerprint):
        log.warning(
            "%s: made for other weights than %s; the output stays right, but fewer drafts may "
            "be accepted", folder, model.checkpoint.name,
        )  # fmt: skip

"""Pairings by name, and the prompts they are measured with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxcel.assets import standard_prompts
from mlxcel.errors import ConfigError, LoadError

__all__ = [
    "PAIRINGS",
    "Checkpoints",
    "checkpoints_of",
    "chosen_prompts",
    "missing",
    "read_prompt",
    "short_name",
]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Target and drafter as `mlxcel.load` takes them, and the name of the pairing."""

    name: str
    target: str
    drafter: str


PAIRINGS = {
    "demo": Checkpoints("demo", "demo", "demo"),
    "gemma31b": Checkpoints(
        "Gemma 4 31B",
        "mlx-community/gemma-4-31b-it-4bit",
        "mlx-community/gemma-4-31B-it-assistant-bf16",
    ),
    "gemma12b": Checkpoints(
        "Gemma 4 12B",
        "mlx-community/gemma-4-12B-it-4bit",
        "mlx-community/gemma-4-12B-it-assistant-4bit",
    ),
    # The head lies in the target's own checkpoint; conversions by mlx-lm have dropped it.
    "qwen": Checkpoints("Qwen3.8 27B", "Qwen/Qwen3.8-27B", "mtp"),
}
"""The demo and the pairings of the founding document, by the names that its records have."""

MODELS = Path("models")
"""Folder, in the one that is worked in, whose checkpoints come before the hub's."""


def checkpoints_of(
    pairing: str | None, model: str | None, drafter: str | None
) -> tuple[Checkpoints, bool]:
    """What to load, and whether it was named as a pairing.

    Parameters
    ----------
    pairing : str or None
        One of `PAIRINGS`.
    model, drafter : str or None
        A target and its drafter instead; a drafter alone replaces that of the pairing.

    Raises
    ------
    ConfigError
        Both a pairing and a model, or a model without a drafter, or an unknown pairing.
    """
    if model is None:
        name = pairing or "demo"
        if name not in PAIRINGS:
            raise ConfigError(
                f"there is no pairing {name!r}; there are {', '.join(PAIRINGS)}", param="pairing"
            )
        found = PAIRINGS[name]
        own = drafter or _located(found.drafter)
        return Checkpoints(found.name, _located(found.target), own), True
    if pairing is not None:
        raise ConfigError(
            f"pairing {pairing!r} and model {model!r} name two targets; give one", param="pairing"
        )
    if drafter is None:
        if model != "demo":
            raise ConfigError(
                f"model {model!r} needs a drafter: a folder, or lookup", param="drafter"
            )
        drafter = "demo"
    return Checkpoints(short_name(model), model, drafter), False


def _located(checkpoint: str) -> str:
    """A checkpoint of a pairing: the folder of that name, if there is one, else as it is."""
    folder = MODELS / short_name(checkpoint)
    return str(folder) if folder.is_dir() else checkpoint


def short_name(checkpoint: str) -> str:
    """What people call a checkpoint: the last part of a folder or hub id."""
    return Path(checkpoint).name or checkpoint


def missing(pairing: Checkpoints, error: LoadError) -> LoadError:
    """The error for a named pairing that cannot be loaded."""
    return LoadError(
        f"the pairing {pairing.name!r} needs the target {pairing.target} and the drafter "
        f"{pairing.drafter}: {error.message}; fetch them, or name folders with --model and "
        "--drafter"
    )


def chosen_prompts(names: Sequence[str], files: Sequence[Path]) -> dict[str, str]:
    """Texts by name: of the standard prompts those named, then files.

    Parameters
    ----------
    names : sequence of str
        Names of standard prompts; none with files means no standard prompt, none without means
        all of them.
    files : sequence of Path
        Texts of one's own, called by their file name.

    Raises
    ------
    ConfigError
        An unknown name, or one that occurs twice.
    LoadError
        A file that cannot be read or is empty.
    """
    known = standard_prompts()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"there is no prompt {name!r}; there are {', '.join(known)}, and --prompt-file",
                param="prompts",
            )
    chosen = {name: known[name] for name in names or (() if files else known)}
    for path in files:
        if path.stem in chosen:
            raise ConfigError(f"two prompts are called {path.stem!r}", param="prompt_file")
        chosen[path.stem] = read_prompt(path)
    return chosen


def read_prompt(path: Path) -> str:
    """Text of a prompt file.

    Raises
    ------
    LoadError
        It cannot be read as UTF-8, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: not readable as text ({error}); correct the path") from None
    if not text:
        raise LoadError(f"{path}: is empty; a prompt needs a text")
    return text

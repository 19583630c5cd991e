"""Targets and drafters that are known to fit: names, sizes and what each needs. Pure data.

Names of checkpoints are those of the Hugging Face hub. Sizes of the assistants are those of their
published configs, as quoted by several projects that load them; ``tests/layouts`` has their
tensors by name and shape.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN_PAIRINGS", "KnownPairing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPairing:
    """One target and what drafts for it.

    Attributes
    ----------
    name : str
        Short name.
    targets, drafters : tuple of str
        Hub ids, the original first; what the command line takes where it is no hub id.
    model_types : tuple of str
        ``model_type`` of target and drafter.
    drafter_parameters : int
        Weights of the drafter; 0 where that is not known here.
    supported : bool
        Whether checkpoints of this layout load and run.
    needs : str
        What a user has to have or to know.
    source : str
        Where the names and sizes come from.
    """

    name: str
    targets: tuple[str, ...]
    drafters: tuple[str, ...]
    model_types: tuple[str, str]
    drafter_parameters: int
    supported: bool
    needs: str
    source: str

    @property
    def command(self) -> str:
        """How to try it; empty where it does not run."""
        if not self.supported:
            return ""
        return f"mlxcel demo --model {self.targets[-1]} --drafter {self.drafters[-1]}"


_CARDS = "model cards of google/gemma-4-*-it-assistant and their config.json"
_BOTH = "both checkpoints; the assistant is no part of the target's"


def _gemma(
    size: str, conversion: str, parameters: int, *, unified: bool = False, more: str = ""
) -> KnownPairing:
    kind = "gemma4_unified" if unified else "gemma4"
    return KnownPairing(
        name=f"gemma-4-{size.lower()}",
        targets=(f"google/gemma-4-{size}-it", f"mlx-community/{conversion}"),
        drafters=(
            f"google/gemma-4-{size}-it-assistant",
            f"mlx-community/gemma-4-{size}-it-assistant-bf16",
        ),
        model_types=(kind, f"{kind}_assistant"),
        drafter_parameters=parameters,
        supported=True,
        needs=f"{_BOTH}{more}",
        source=_CARDS,
    )


def _qwen(name: str, target: str, kind: str, parameters: int = 0) -> KnownPairing:
    return KnownPairing(
        name=name,
        targets=(target,),
        drafters=(f"mtp:{target}", "mtp"),
        model_types=(kind, "qwen3_5_mtp"),
        drafter_parameters=parameters,
        supported=True,
        needs=(
            "the head, which lies in the target's original checkpoint (tensors mtp.*) and which "
            "mlx-lm's conversions drop: run the original, or name its folder (mtp:FOLDER)"
        ),
        source=f"config.json of {target}",
    )


def _eagle(
    name: str, target: str, drafter: str, kind: str, parameters: int, more: str
) -> KnownPairing:
    return KnownPairing(
        name=name,
        targets=(target,),
        drafters=(drafter,),
        model_types=("llama", kind),
        drafter_parameters=parameters,
        supported=True,
        needs=f"both checkpoints; {more}",
        source="SafeAILab/EAGLE and vLLM, which load it; sizes from the target's config",
    )


KNOWN_PAIRINGS: tuple[KnownPairing, ...] = (
    KnownPairing(
        name="demo",
        targets=("demo",),
        drafters=("demo",),
        model_types=("llama", "mlxcel_mtp"),
        drafter_parameters=4_205_376,
        supported=True,
        needs="nothing: the model is fetched once, its drafter comes with the package",
        source="docs/distill.md",
    ),
    _gemma("31B", "gemma-4-31b-it-4bit", 469_518_596),
    _gemma(
        "12B", "gemma-4-12B-it-4bit", 422_856_964, unified=True,
        more="; a 4-bit one is mlx-community/gemma-4-12B-it-assistant-4bit",
    ),
    _gemma("26B-A4B", "gemma-4-26b-a4b-it-4bit", 419_711_236),
    _gemma("E4B", "gemma-4-E4B-it-4bit", 78_517_764),
    _gemma("E2B", "gemma-4-e2b-it-4bit", 77_731_332),
    _qwen("qwen3.5-27b", "Qwen/Qwen3.5-27B", "qwen3_5", 424_699_392),
    _qwen("qwen3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B", "qwen3_5_moe", 844_640_768),
    _qwen(
        "qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next", 1_650_471_424
    ),
    _eagle(
        "eagle3-llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct",
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "eagle3", 424_689_664,
        "the authors' own head (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B) is a pickle, to be converted",
    ),
    _eagle(
        "eagle-llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct",
        "yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle", 251_662_336,
        "a head that is a pickle has to be converted once; loading it says how",
    ),
)
"""In the order in which they are listed."""

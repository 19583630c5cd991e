"""Names of hosts that a person types: what they can mean, and what to say to those that cannot.

Whatever the system itself says about a host goes to `mlxcel.decide.chips.identify` as it is;
this is for names on a command line, where a slip must not pass for an unknown chip.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from mlxcel.decide.chips import GENERATIONS, parse_architecture
from mlxcel.errors import ConfigError

__all__ = ["host_name"]

_SHORT = re.compile(r"M\d{1,3}( (Pro|Max|Ultra))?", re.IGNORECASE)
_WORD = re.compile(
    r"""apple|gpu|cuda|nvidia|geforce|rtx|gtx|quadro|tesla|titan|radeon|instinct
    | (gb|gh|rtx|gtx|[abhltvp])\d{1,4}[a-z]{0,2}
    | cpu|processor|amd|epyc|ryzen|threadripper|intel|xeon|arm|neoverse|cortex|graviton|ampere
    | altra|grace|qualcomm|snapdragon|kunpeng|phytium|hygon|loongson|zhaoxin|rockchip|broadcom
    | raspberry|sifive|ibm|power\d+
    | x86|x86_64|amd64|i686|aarch64|arm64|armv\d+l|riscv64|ppc64le|s390x|loongarch64""",
    re.VERBOSE,
)
"""A word that makes a name one of an Apple chip, a GPU or a processor."""


def host_name(text: str, known: Iterable[str] = ()) -> str:
    """The name of a host as `mlxcel.decide.chips.identify` takes it.

    Parameters
    ----------
    text : str
        What was typed: an Apple chip, with or without ``Apple``, a Metal architecture, a
        GPU, a processor, or a name from ``known``. Newer ones than we know are welcome.
    known : iterable of str
        Further names, such as the hosts of the evidence.

    Raises
    ------
    ConfigError
        It is none of these; the message says what is understood, and the nearest name.
    """
    name, known = " ".join(text.split()), tuple(known)
    if _SHORT.fullmatch(name):
        return f"Apple {name}"
    words = re.split(r"[^a-z0-9_]+", name.casefold())
    if any(_WORD.fullmatch(word) for word in words):
        return name
    if parse_architecture(name) or name.casefold() in map(str.casefold, known):
        return name
    raise ConfigError(
        f"--host {text!r} is no host that is known here{_nearest(name, known)}; understood are "
        "Apple chips ('Apple M3 Ultra', later ones too), GPUs ('NVIDIA H200', 'cuda') and "
        "processors ('AMD EPYC 9654', 'cpu'); put GPU or CPU before any other name",
        param="host",
    )


def _nearest(name: str, known: tuple[str, ...]) -> str:
    table = [
        f"Apple {entry.name} {variant}".strip()
        for entry in GENERATIONS.values()
        for variant in entry.bandwidth
    ]
    by_folded = {candidate.casefold(): candidate for candidate in (*table, *known)}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f" (did you mean {by_folded[near[0]]!r}?)" if near else ""

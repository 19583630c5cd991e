"""Measuring what invariant numerics cost: the same requests in both numerics, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mlxcel.config import Settings
from mlxcel.decide.price import Price, price_of
from mlxcel.decide.rows import Numerics
from mlxcel.engine.alone import run_alone
from mlxcel.engine.engine import Engine
from mlxcel.engine.scripted import ScriptedDrafter
from mlxcel.engine.served_form import pass_rule
from mlxcel.runtime.loader import LoadedModel
from mlxcel.types import Completion, Request, SamplingParams, Speculation

__all__ = ["PriceReport", "measure_price"]

PROMPT_TOKENS = 8
NUMERICS: tuple[Numerics, Numerics] = ("fast", "invariant")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceReport:
    """What was measured.

    Attributes
    ----------
    width, block : int
        Block width asked for, and tokens that every pass is fed in invariant numerics.
    classic, verify : Price
        Of a classic step, and of a round of that width whose drafts are all right and free.
    equal : bool
        Whether all invariant runs gave the same token ids.
    """

    width: int
    block: int
    classic: Price
    verify: Price
    equal: bool


def measure_price(
    model: LoadedModel,
    settings: Settings,
    width: int,
    *,
    repeats: int = 5,
    tokens: int = 25,
    clock: Callable[[], float] = time.perf_counter,
) -> PriceReport:
    """Measure the price on this host; takes some ten requests of ``tokens`` tokens per repeat.

    Parameters
    ----------
    model : LoadedModel
        A target whose caches can rewind.
    settings : Settings
        Sizes; its numerics do not matter.
    width : int
        Block width, at least 2.
    repeats, tokens : int
        Counted runs, and tokens of each.
    clock : callable
        Seconds.

    Notes
    -----
    Not thread-safe: call it on the thread that loaded the model.
    """
    arms = {
        numerics: _Arm(model, settings, width, numerics, tokens, clock) for numerics in NUMERICS
    }
    seconds: dict[tuple[Numerics, Speculation], list[float]] = {}
    for repeat in range(repeats + 1):
        for numerics in NUMERICS if repeat % 2 == 0 else NUMERICS[::-1]:
            for mode, found in arms[numerics].run().items():
                if repeat:  # the first only warms up
                    seconds.setdefault((numerics, mode), []).append(found)

    def price(what: str, mode: Speculation) -> Price:
        return price_of(what, *(seconds[numerics, mode] for numerics in NUMERICS))

    return PriceReport(
        width=width,
        block=arms["invariant"].block,
        classic=price("classic step", "off"),
        verify=price(f"round of {width}", "on"),
        equal=len(arms["invariant"].outputs) == 1,
    )


class _Arm:
    """One numerics: a classic and a speculative request, over and over."""

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        width: int,
        numerics: Numerics,
        tokens: int,
        clock: Callable[[], float],
    ) -> None:
        widest = max(settings.default_width, width)
        mine = replace(settings, numerics=numerics, default_width=widest)
        rule = pass_rule(model, mine)
        prompt = tuple((7 * at + 1) % model.target.vocab_size for at in range(PROMPT_TOKENS))
        params = SamplingParams(max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True)
        self.block = rule.block
        self.outputs: set[tuple[int, ...]] = set()
        self._request = Request(prompt_ids=prompt, params=params, width=width)

        classic = Engine(model, None, mine, rule=lambda: rule, clock=clock)
        answers = {prompt: self._ask(classic, "off").token_ids}
        drafter = ScriptedDrafter(answers, [width - 1], model.target.vocab_size)
        speculative = Engine(model, drafter, mine, rule=lambda: rule, clock=clock)
        self._engines: dict[Speculation, Engine] = {"off": classic, "on": speculative}

    def run(self) -> dict[Speculation, float]:
        """Seconds of a classic step and of a round."""
        found: dict[Speculation, float] = {}
        for mode, engine in self._engines.items():
            done = self._ask(engine, mode)
            self.outputs.add(done.token_ids)
            found[mode] = done.speculation.decode_seconds / done.speculation.rounds
        return found

    def _ask(self, engine: Engine, mode: Speculation) -> Completion:
        return run_alone(engine, replace(self._request, speculation=mode))

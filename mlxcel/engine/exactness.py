"""The exactness probe: a verify of K tokens against K single steps from the same state.

It runs before the first burst of a pairing at a width, on the engine's thread and on
throwaway caches. The verdict is `mlxcel.decide.exactness`'s; here the passes are run and
the result is kept in the cache folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx

from mlxcel.config import Settings
from mlxcel.decide.exactness import Draw, ExactnessRecord, judge, unprobed
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.rows import RowRule, rule_of, widest
from mlxcel.engine.exactness_arms import Arm, LayerRecorder, Pair, Seen, first_layer, uncached
from mlxcel.engine.exactness_store import TARGET_NAME, kept_record, store_of
from mlxcel.engine.served_form import pass_rule
from mlxcel.errors import ConfigError
from mlxcel.hardware.host import Host, describe
from mlxcel.hardware.profile_store import host_facts
from mlxcel.models.lean import LEAN_VERSION
from mlxcel.models.target import Target
from mlxcel.runtime.loader import LoadedModel

__all__ = ["ProbeInterrupted", "exactness_of", "kept_exactness", "probe_exactness", "probe_key"]

log = logging.getLogger(__name__)

Clock = Callable[[], float]

DRAWS = 3
PROMPT_TOKENS = 8
PAST_RING = 32
LONGEST = 8192
"""Prompt tokens of the longest draw; a larger window is not wrapped."""

_ROUNDING = 64  # machine epsilons that a layer's output may differ by


class ProbeInterrupted(Exception):
    """A probe has made room for other work; nothing is known and nothing was kept."""


def exactness_of(
    model: LoadedModel,
    width: int,
    settings: Settings,
    *,
    rule: RowRule | None = None,
    host: Host | None = None,
    refresh: bool = False,
    clock: Clock = time.perf_counter,
    interrupted: Callable[[], bool] = bool,
) -> ExactnessRecord:
    """What is known of a target's exactness at a width on this host; probed if nothing is.

    Not thread-safe: call it on the engine's thread, between rounds.

    Parameters
    ----------
    model : LoadedModel
        The target as it is served. The drafter does not matter.
    width : int
        Block width, 2 to the widest that requests may ask for.
    settings : Settings
        Sizes of caches, and the cache folder; records lie under ``exactness/``.
    rule : RowRule, optional
        How the engine pads passes; by default as it does on this host.
    host : Host, optional
        This host; described by default.
    refresh : bool
        Probe again, whatever is kept.
    clock, interrupted : callable
        Seconds; whether the probe must make room, asked between comparisons.

    Returns
    -------
    ExactnessRecord
        With level ``"unprobed"`` where the probe cannot run or has failed: such a record
        is not kept, and `mlxcel.decide.exactness.veto_of` declines on it.

    Raises
    ------
    ConfigError
        The width is out of bounds.
    ProbeInterrupted
        ``interrupted`` said so.
    """
    _check_width(width, settings)
    if model.target.layout.windows is None:
        return unprobed(width, model.target.layout.reason)
    store, host = store_of(settings.cache_dir), host or describe()
    rule = rule or pass_rule(model, settings, host)
    key = probe_key(model, width, settings, rule=rule, host=host)
    if not refresh and (kept := kept_record(store, key)) is not None:
        return kept
    record = _run(model, width, settings, rule, clock, interrupted)
    name, level = model.checkpoint.name, record.level
    log.info("exactness of %s at width %d: %s, %s", name, width, level, record.reason)
    if record.level != "unprobed":
        store.write(key, record.to_dict() | {TARGET_NAME: name})
    return record


def kept_exactness(
    model: LoadedModel, width: int, settings: Settings, *, rule: RowRule, host: Host
) -> ExactnessRecord | None:
    """What was found earlier, ``None`` if nothing was; see `exactness_of`. Probes nothing."""
    key = probe_key(model, width, settings, rule=rule, host=host)
    return kept_record(store_of(settings.cache_dir), key)


def _check_width(width: int, settings: Settings) -> None:
    if not 2 <= width <= widest(settings):
        name = "max_width" if settings.numerics == "fast" else "default_width"
        raise ConfigError(f"width must be 2 to {name} = {widest(settings)}, got {width}")


def _run(
    model: LoadedModel,
    width: int,
    settings: Settings,
    rule: RowRule,
    clock: Clock,
    interrupted: Callable[[], bool],
) -> ExactnessRecord:
    try:
        return probe_exactness(
            model.target, width, settings, rule=rule, clock=clock, interrupted=interrupted
        )
    except (RuntimeError, ValueError, MemoryError, TypeError, AssertionError) as error:
        log.warning("the exactness probe failed: %s", error)
        return unprobed(width, f"the probe failed: {error}")


def probe_key(
    model: LoadedModel, width: int, settings: Settings, *, rule: RowRule, host: Host
) -> dict[str, Any]:
    """Everything that can change what a probe finds; the drafter cannot."""
    return {
        "target": model.checkpoint.fingerprint,
        "host": host_facts(host),
        "weights": [model.representation.form, model.representation.dtype],
        "lean": LEAN_VERSION if settings.lean_modules else 0,
        "width": width,
        "sizes": [settings.max_width, settings.length_step, settings.prefill_chunk],
        "numerics": rule.numerics,
        "padding": rule.key(width),
        "round_loop": ROUND_LOOP_VERSION,
    }


def probe_exactness(
    target: Target,
    width: int,
    settings: Settings,
    *,
    rule: RowRule | None = None,
    clock: Clock = time.perf_counter,
    interrupted: Callable[[], bool] = bool,
) -> ExactnessRecord:
    """Run the probe; nothing is read from or written to the cache folder.

    Parameters
    ----------
    target : Target
        A model whose caches can rewind.
    width : int
        Block width, at least 2.
    settings : Settings
        Sizes of caches.
    rule : RowRule, optional
        How passes are padded; by default as the settings alone say.
    clock : callable
        Seconds.
    interrupted : callable
        As for `exactness_of`.
    """
    began = clock()
    probe = _Probe(target, width, settings, rule or rule_of(settings))
    draws: list[Draw] = []
    for run in probe.plan():
        if interrupted():
            raise ProbeInterrupted
        found = [pair.draw() for pair in run()]
        draws += found
        if any(draw.level == "divergent" for draw in found):
            layer, part = probe.locate(run)
            return judge(draws, width=width, seconds=clock() - began).located(layer, part)
    return judge(draws, width=width, seconds=clock() - began)


Run = Callable[[], list[Pair]]


class _Probe:
    """The comparisons for one target and width; each makes its arms anew."""

    def __init__(self, target: Target, width: int, settings: Settings, rule: RowRule) -> None:
        self.target = target
        self.rule = rule
        self.width = width
        self.settings = settings
        self.recorder: LayerRecorder | None = None

    def plan(self) -> Iterator[Run]:
        """What to run, cheap before dear."""
        for number in range(DRAWS):
            yield partial(
                self.compare, PROMPT_TOKENS, _salt(number), kinds=(False, True), own=number == 0
            )
        yield partial(self.rewind, PROMPT_TOKENS, _salt(0))
        ring = self.ring()
        if ring is not None:
            # Past the ring's end, and across it.
            yield partial(self.compare, ring + PAST_RING, _salt(DRAWS), kinds=(True,), own=True)
            yield partial(self.rewind, ring - self.width // 2, _salt(DRAWS))

    def ring(self) -> int | None:
        """Positions of the largest ring that requests can wrap, if there is one."""
        windows = [w for w in self.target.layout.windows or () if w is not None]
        last = PAST_RING + 3 * self.width
        limit = min(LONGEST, self.target.context_length or LONGEST) - last
        rings = [window + self.settings.max_width for window in windows]
        return max((ring for ring in rings if ring <= limit), default=None)

    def compare(self, start: int, salt: int, *, kinds: tuple[bool, ...], own: bool) -> list[Pair]:
        """Synthetic tokens as a block and as steps; also against the model's own caches."""
        prompt, block = self._tokens(7, 1, start, salt), self._tokens(13, 3, self.width, salt)
        steps = self._arm(prompt).steps(block)
        name = f"{start} tokens, salt {salt}"
        pairs = []
        for ragged in kinds:
            seen = self._arm(prompt).block(block, ragged=ragged)
            wanted = _matching(block, seen.choices)
            fault = ""
            if seen.accepted != wanted:
                fault = f"{seen.accepted} drafts were accepted, {wanted} equal the choices"
            how = "length on the device" if ragged else "length on the host"
            pairs.append(Pair(f"{name}, {how}", start, steps, seen, fault))
        if own:
            text = [*prompt, *block]
            seen = uncached(self.target, self.settings, text, self.width, self.recorder)
            pairs.append(
                Pair(f"{name}, against the model's own caches", start, steps, seen, "", True)
            )
        return pairs

    def rewind(self, start: int, salt: int) -> list[Pair]:
        """A block with a rejected tail, then another block, against steps that never had it."""
        width, kept = self.width, (self.width - 1) // 2
        prompt, other = self._tokens(7, 1, start, salt), self._tokens(13, 3, width, salt + 1)
        fresh = self._arm(prompt)
        seen = [fresh.step(other[0])]
        for _ in range(kept):
            seen.append(fresh.step(seen[-1].choices[-1]))
        chosen = [part.choices[-1] for part in seen]
        wrong = [(token + chosen[-1] + 1) % self._vocab for token in range(width - 1 - kept)]
        arm = self._arm(prompt)
        first = arm.block([other[0], *chosen[:kept], *wrong], ragged=False)
        fault = ""
        if first.accepted != kept:
            fault = f"{first.accepted} drafts were accepted, {kept} are right"
        name = f"{start} tokens, salt {salt}"
        pairs = [
            Pair(f"{name}, rejected tail", start, Seen.joined(seen), first.first(kept + 1), fault)
        ]
        if fault:
            return pairs
        second = [chosen[-1], *other[1:]]
        steps = fresh.steps(second)
        after = arm.block(second, ragged=True, bonus=False)
        pairs.append(Pair(f"{name}, after a rejected tail", start + kept + 1, steps, after))
        return pairs

    def locate(self, run: Run) -> tuple[int | None, float]:
        """Run a comparison again with the layers recorded; find where it begins to differ."""
        self.recorder = LayerRecorder(self.target)
        try:
            with self.recorder.active():
                pairs = run()
            failed = [pair for pair in pairs if pair.draw().level == "divergent"]
            return first_layer(failed[0].steps, failed[0].block, self._tolerance())
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            log.info("the layer of the difference cannot be found: %s", error)
            return None, 0.0
        finally:
            self.recorder = None

    def _tolerance(self) -> float:
        kind = self.target.body.embed_tokens.weight.dtype if self.target.split else mx.float32
        bits = {mx.float16: 11, mx.bfloat16: 8}.get(kind, 24)
        return float(_ROUNDING * 2.0**-bits)

    def _arm(self, prompt: list[int]) -> Arm:
        return Arm(self.target, self.settings, prompt, self.rule, self.recorder)

    @property
    def _vocab(self) -> int:
        return self.target.vocab_size

    def _tokens(self, factor: int, first: int, count: int, salt: int) -> list[int]:
        return [(factor * at + first + salt) % self._vocab for at in range(count)]


def _salt(draw: int) -> int:
    return draw * 977 + 1


def _matching(block: list[int], choices: tuple[int, ...]) -> int:
    """Drafts of a block that equal the choices before them, up to the first that does not."""
    for at, draft in enumerate(block[1:]):
        if draft != choices[at]:
            return at
    return len(block) - 1

"""The benchmark protocol: which arm runs when, and what is kept of it.

A prompt is warmed up until two runs of an arm in a row agree. Then a classic run (the first of
the null arm), blocks, and a classic run again (the last of it). A block runs classic, every
width, every width again in the opposite order, classic: for a single width that is ABBA, for a
sweep each width has its ABBA within the block, with the two classic runs in common. The width
that comes first changes from block to block, so that drift is spread over all widths.

Clock and runner are passed in: nothing here reads the time or knows a model by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mlxcel.bench.arms import Outcome, Runner
from mlxcel.decide.bench_limits import MAX_WARMUPS, MIN_BLOCKS, WARM_PERCENT
from mlxcel.decide.raw_runs import Difference, RawRow, Run
from mlxcel.errors import ConfigError

__all__ = ["Cell", "Plan", "block_order", "measure"]

Clock = Callable[[], float]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes
    ----------
    prompts : mapping of str to str
        Text by name.
    widths : tuple of int
        Block widths, each at least 2.
    tokens : int
        Budget of a run, at least 2.
    blocks : int
        Blocks of each prompt.
    pause : float
        Seconds between runs.

    Raises
    ------
    ConfigError
        A value out of bounds; names it.
    """

    prompts: Mapping[str, str]
    widths: tuple[int, ...]
    tokens: int = 128
    blocks: int = MIN_BLOCKS
    pause: float = 0.0

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("prompts: at least one is needed", param="prompts")
        if not self.widths or min(self.widths) < 2 or len(set(self.widths)) < len(self.widths):
            raise ConfigError(
                f"widths must be different and at least 2, got {self.widths}", param="widths"
            )
        for name, least in (("tokens", 2), ("blocks", 1), ("pause", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was measured of a prompt at a width.

    Attributes
    ----------
    prompt : str
        Name of the prompt.
    width : int
        Block width asked for.
    raw : RawRow
        Every run.
    first_difference : Difference or None
        Where a run first differs from the first classic one.
    note : str
        How many warm-up runs were discarded.
    """

    prompt: str
    width: int
    raw: RawRow
    first_difference: Difference | None
    note: str


_Timed = tuple[Run, tuple[int, ...]]
"""A run and its answer."""


def block_order(widths: tuple[int, ...], block: int) -> tuple[int | None, ...]:
    """Arms of a block, ``None`` for classic: a palindrome whose start rotates."""
    start = block % len(widths)
    there = (None, *widths[start:], *widths[:start])
    return (*there, *reversed(there))


def measure(
    runner: Runner,
    plan: Plan,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    say: Say = lambda text: None,
) -> Iterator[Cell]:
    """Measure every prompt at every width; the cells of a prompt come when it is done.

    Parameters
    ----------
    runner : Runner
        Runs the arms.
    plan : Plan
        What is measured.
    clock : callable
        Seconds; only differences count.
    sleep : callable
        Waits for so many seconds.
    say : callable
        Told what is going on, for people.
    """
    campaign = _Campaign(runner, plan, clock, sleep, say)
    for name, text in plan.prompts.items():
        yield from campaign.prompt(name, text)


class _Campaign:
    """Owns the runner for the time of a measurement."""

    def __init__(
        self, runner: Runner, plan: Plan, clock: Clock, sleep: Callable[[float], None], say: Say
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._began = clock()

    def prompt(self, name: str, text: str) -> Iterator[Cell]:
        """All widths of one prompt."""
        plan = self._plan
        arms: tuple[int | None, ...] = (None, *plan.widths)
        dropped = {arm: self._warm(name, text, arm) for arm in arms}
        first = self._timed(text, None)
        blocks: list[dict[int | None, list[_Timed]]] = []
        for block in range(plan.blocks):
            self._say(f"{name}: block {block + 1} of {plan.blocks}")
            kept: dict[int | None, list[_Timed]] = {arm: [] for arm in arms}
            for arm in block_order(plan.widths, block):
                kept[arm].append(self._timed(text, arm))
            blocks.append(kept)
        last = self._timed(text, None)
        for width in plan.widths:
            pairs = []
            for kept in blocks:
                (before, after), (one, two) = kept[None], kept[width]
                pairs.append((before, one, two, after))
            ran = [first, *(each for pair in pairs for each in pair), last]
            yield Cell(
                prompt=name,
                width=width,
                raw=RawRow(
                    tuple(tuple(run for run, _ in pair) for pair in pairs), (first[0], last[0])
                ),
                first_difference=self._difference(text, [ids for _, ids in ran]),
                note=f"warm-up discarded: {dropped[None]} classic, {dropped[width]} speculative",
            )

    def _run(self, text: str, arm: int | None) -> tuple[float, Outcome]:
        """When it began, and what it gave."""
        if self._plan.pause:
            self._sleep(self._plan.pause)
        started = self._clock() - self._began
        return started, self._runner.run(text, arm, self._plan.tokens)

    def _timed(self, text: str, arm: int | None) -> _Timed:
        started, done = self._run(text, arm)
        return done.as_run(speculative=arm is not None, started=started), done.token_ids

    def _warm(self, name: str, text: str, arm: int | None) -> str:
        """Run an arm until it is steady; how many runs were dropped, for people."""
        before = 0.0
        for count in range(1, MAX_WARMUPS + 1):
            _, done = self._run(text, arm)
            change = 100 * abs(done.speed / before - 1) if before else float("inf")
            if change <= WARM_PERCENT and not done.profiling:
                return str(count)
            before = done.speed
        which = "classic" if arm is None else f"width {arm}"
        self._say(f"{name}: {which} is not steady after {MAX_WARMUPS} warm-up runs")
        return f"{MAX_WARMUPS} (not steady)"

    def _difference(self, text: str, answers: list[tuple[int, ...]]) -> Difference | None:
        """Where the first answer that differs from the first one does so."""
        wanted = answers[0]
        for ids in answers[1:]:
            if ids != wanted:
                pairs = enumerate(zip(wanted, ids, strict=False))
                shorter = min(len(wanted), len(ids))
                at = next((i for i, (a, b) in pairs if a != b), shorter)
                ended = at == shorter
                return Difference(at, None if ended else self._runner.margin(text, at))
        return None

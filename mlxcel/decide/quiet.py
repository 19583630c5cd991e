"""Whether the host has been quiet for long enough to begin measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.decide.host_load import Load
from mlxcel.errors import ConfigError

__all__ = ["BUSY_PERCENT", "QuietGate", "QuietLimits", "skipped"]

Verdict = Literal["waiting", "quiet", "timed out"]

BUSY_PERCENT = 15.0
"""Percent of a core from which on a foreign process disturbs (lablup/mlxcel#1215)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietLimits:
    """What counts as quiet; the defaults are those of lablup/mlxcel#1215.

    Attributes
    ----------
    percent : float
        The busiest foreign process must use less, in percent of a core.
    seconds : float
        Quiet time to gather.
    timeout : float
        Seconds after which measuring begins all the same, with a warning; 0 waits for ever.
    sample_seconds : float
        Time between two looks.

    Raises
    ------
    ConfigError
        A value out of bounds.
    """

    percent: float = BUSY_PERCENT
    seconds: float = 90.0
    timeout: float = 1800.0
    sample_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("percent", "seconds", "sample_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"quiet gate: {name} must be above 0, got {getattr(self, name)}", param=name
                )
        if not 0 <= self.timeout < float("inf"):
            raise ConfigError(
                f"quiet gate: timeout must be 0 (none) or more seconds, got {self.timeout}",
                param="timeout",
            )


class QuietGate:
    """Gathers quiet time until there is enough of it.

    A busy interval takes its length from the time gathered instead of starting again: on a
    host that does something every minute a gate that starts again never opens.

    Parameters
    ----------
    limits : QuietLimits
        What counts as quiet.
    began : float
        Now, in seconds of a steady clock.
    """

    def __init__(self, limits: QuietLimits, began: float) -> None:
        self.limits = limits
        self._began = self._last = began
        self._gathered = 0.0
        self._busy = 0
        self._samples = 0
        self._worst: Load | None = None
        self.verdict: Verdict = "waiting"

    @property
    def missing(self) -> float:
        """Quiet seconds still to gather."""
        return max(0.0, self.limits.seconds - self._gathered)

    def observe(self, now: float, loads: Sequence[Load]) -> Verdict:
        """Take one look in.

        Parameters
        ----------
        now : float
            Seconds of the same clock.
        loads : sequence of Load
            What foreign processes used since the last look, busiest first.

        Returns
        -------
        {"waiting", "quiet", "timed out"}
            Whether to go on waiting.
        """
        span, self._last = now - self._last, now
        self._samples += 1
        if loads and loads[0].percent >= self.limits.percent:
            self._busy += 1
            self._gathered = max(0.0, self._gathered - span)
            if self._worst is None or loads[0].percent > self._worst.percent:
                self._worst = loads[0]
        else:
            self._gathered += span
        # A clock's sums may fall short of a round number by their last bit.
        if self.missing <= 1e-6:
            self.verdict = "quiet"
        elif self.limits.timeout and now - self._began >= self.limits.timeout:
            self.verdict = "timed out"
        return self.verdict

    @property
    def warning(self) -> str | None:
        """What to tell people who have waited in vain, else ``None``."""
        if self.verdict != "timed out":
            return None
        worst = self._worst
        name = f"{worst.name} (pid {worst.pid}, {worst.percent:.0f} % of a core)" if worst else ""
        busiest = f"; busiest was {name}" if name else ""
        return (
            f"the host was not quiet for {self.limits.seconds:g} s within "
            f"{self.limits.timeout:g} s{busiest}; measured all the same"
        )

    def report(self) -> dict[str, Any]:
        """What was found, as JSON for a record's provenance.

        Returns
        -------
        dict
            ``ran``, ``passed`` and ``reason`` (the warning) say whether rows may be published.
        """
        worst = self._worst
        return {
            "ran": True,
            "passed": self.verdict == "quiet",
            "reason": self.warning,
            "verdict": self.verdict,
            "limit_percent": self.limits.percent,
            "wanted_seconds": self.limits.seconds,
            "gathered_seconds": round(self._gathered, 3),
            "waited_seconds": round(self._last - self._began, 3),
            "samples": self._samples,
            "busy_samples": self._busy,
            "busiest": None
            if worst is None
            else {"name": worst.name, "pid": worst.pid, "percent": round(worst.percent, 1)},
        }


def skipped() -> dict[str, Any]:
    """The report of a gate that nobody waited at."""
    return {"ran": False, "reason": "nobody waited for the host to be quiet"}

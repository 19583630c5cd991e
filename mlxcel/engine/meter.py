"""Times of one request's rounds, for the adaptive policy: counts and seconds, no tokens."""

from __future__ import annotations

from mlxcel.decide.estimate import BurstSample

__all__ = ["BurstMeter"]


class BurstMeter:
    """Sums rounds by width.

    Parameters
    ----------
    width : int
        Width that the request was given; its rounds are reported if there are any.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._sums: dict[int, tuple[int, int, float]] = {}

    def add(self, width: int, emitted: int, seconds: float) -> None:
        """Take in a round that ran alone: its width, tokens, and wall time in seconds."""
        rounds, tokens, total = self._sums.get(width, (0, 0, 0.0))
        self._sums[width] = (rounds + 1, tokens + emitted, total + seconds)

    def sample(self) -> BurstSample:
        """The burst: rounds of the given width, or of the most frequent one if none had it."""
        wide = {width: sums for width, sums in self._sums.items() if width > 1}
        width = max(wide, key=lambda w: (w == self.width, wide[w][0]), default=self.width)
        rounds, emitted, seconds = wide.get(width, (0, 0, 0.0))
        probes, _, probe_seconds = self._sums.get(1, (0, 0, 0.0))
        return BurstSample(
            width=width, rounds=rounds, emitted=emitted, seconds=seconds,
            probe_rounds=probes, probe_seconds=probe_seconds,
        )  # fmt: skip

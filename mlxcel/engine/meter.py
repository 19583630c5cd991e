"""Times of one request's rounds, for policy and width controller: counts and seconds, no tokens."""

from __future__ import annotations

from mlxcel.decide.estimate import BurstSample
from mlxcel.decide.width import WidthController

__all__ = ["BurstMeter"]


class BurstMeter:
    """Sums rounds by width.

    Parameters
    ----------
    width : int
        Width that the request was given; its rounds are reported if there are any.

    Attributes
    ----------
    controller : WidthController or None
        Chooses the widths of this request and is told of every round. The sums then hold only
        rounds of the given width while the controller holds it: rounds of other widths, and
        those of a width that is only tried, would bend what the policy knows of the given one.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.controller: WidthController | None = None
        self._sums: dict[int, tuple[int, int, float]] = {}

    def add(self, width: int, emitted: int, seconds: float, *, cut: bool = False) -> None:
        """Take in a round that ran alone.

        Parameters
        ----------
        width, emitted : int
            Its block width and tokens.
        seconds : float
            Its wall time.
        cut : bool
            Whether a stop token ended it: what it would have emitted nobody knows.
        """
        if self.controller is not None:
            held = self.controller.holder
            if not cut:
                self.controller.observe(width, emitted, seconds)
            if not width == held == self.width:
                return
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

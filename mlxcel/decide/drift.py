"""Whether what a settled verdict rests on still holds, from figures that cost nothing."""

from __future__ import annotations

from collections import deque

from mlxcel.decide.estimate import weighted_median

__all__ = ["DRIFT_BAND", "DRIFT_BURSTS", "DRIFT_ROUNDS", "DriftWatch"]

DRIFT_BAND = 1.3
"""Factor, up or down, by which a figure may leave its reference. Prompts alone move the
emitted tokens by a factor of 1.35 at most between their extremes (3.99 for an enumeration,
2.96 for prose, M3 Ultra 2026-08-20), so by less from a mixture."""

DRIFT_BURSTS = 8
"""Bursts of one width that a comparison needs; twice as many are remembered."""

DRIFT_ROUNDS = 64
"""Rounds that a comparison needs: by luck alone their emitted tokens differ by about 6 %."""


class DriftWatch:
    """Running figures by block width, against those at the time of the verdict.

    Classic decode is width 1, so a declined pairing is watched by its classic step. A width
    without a reference (the width controller has moved on) gets one from its first window.

    Parameters
    ----------
    references : dict of int to (float, float)
        Emitted tokens per verify and seconds per round, by width.
    patience : int
        Bursts to wait before anything counts as drift.
    """

    def __init__(
        self, references: dict[int, tuple[float, float]], *, patience: int = DRIFT_BURSTS
    ) -> None:
        self._references = dict(references)
        self._patience = patience
        self._bursts = 0
        self._window: deque[tuple[int, int, int, float]] = deque(maxlen=2 * DRIFT_BURSTS)

    def observe(self, width: int, rounds: int, emitted: int, seconds: float) -> str:
        """Take one burst in.

        Parameters
        ----------
        width : int
            Block width of its rounds; 1 for classic decode.
        rounds, emitted : int
            Rounds and the tokens they emitted.
        seconds : float
            Wall time of the rounds.

        Returns
        -------
        str
            What has drifted, for people; empty while everything holds.
        """
        if rounds < 1 or seconds <= 0:
            return ""
        self._bursts += 1
        self._window.append((width, rounds, emitted, seconds))
        bursts = [entry[1:] for entry in self._window if entry[0] == width]
        total = sum(count for count, _, _ in bursts)
        if len(bursts) < DRIFT_BURSTS or total < DRIFT_ROUNDS:
            return ""
        per_verify = sum(tokens for _, tokens, _ in bursts) / total
        cost = weighted_median([(spent / count, count) for count, _, spent in bursts])
        if width not in self._references:
            self._references[width] = (per_verify, cost)
        if self._bursts < self._patience:
            return ""
        before, cost_before = self._references[width]
        if _left(per_verify, before):
            return f"emitted per verify at width {width} went from {before:.2f} to {per_verify:.2f}"
        if _left(cost, cost_before):
            return (
                f"a round of width {width} went from {cost_before * 1e3:.1f} ms "
                f"to {cost * 1e3:.1f} ms"
            )
        return ""


def _left(now: float, reference: float) -> bool:
    return now > reference * DRIFT_BAND or now * DRIFT_BAND < reference

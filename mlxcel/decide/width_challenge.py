"""One width on trial against the width that is held: whose turn it is, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = [
    "ABORT_RATIO",
    "ABORT_ROUNDS",
    "CHALLENGE_ROUNDS",
    "MARGIN",
    "PROBE_ALLOWANCE",
    "PROBE_SHARE",
    "SERIES",
    "STUCK",
    "WAKE_ROUNDS",
    "Challenge",
    "Costs",
    "first_step",
]

SERIES = 4
"""Rounds of one width in a row where rounds are pipelined. The time of such a round belongs
to it only if the next one has the same width, so three of the four count."""

CHALLENGE_ROUNDS = 8
"""Rounds of a challenger, in turn with the holder's so that both see the same text."""

FIRST_GAIN = 0.25
"""Share of tokens that twice the width must add for the first challenger to be wider."""

WAKE_ROUNDS = 12
"""The same from width 1, whose rounds bring no acceptance to compare with."""

ABORT_ROUNDS = 4
"""Rounds after which a hopeless challenge ends."""

ABORT_RATIO = 0.65
"""Share of the holder's rate below which a challenge is hopeless."""

MARGIN = 0.02
"""What a challenger must be faster by: below, a switch is noise."""

STUCK = 64
"""Rounds that a challenger may be too wide for the budget, or run without being measured,
before it gives up."""


PROBE_SHARE = 0.03
"""Share of all measured time that challenges may lose against the holder."""

PROBE_ALLOWANCE = 24.0
"""What they may lose besides, in rounds of the holder, so that a fresh host can explore."""


def first_step(holder: int, widths: Sequence[int], emitted: Callable[[int], float]) -> int:
    """Who challenges while the holder's is the only cost known: half its width or twice.

    Parameters
    ----------
    holder : int
        Width held.
    widths : sequence of int
        Others that may run, at least one.
    emitted : callable
        Tokens per round expected at a width.
    """
    wider = min(widths, key=lambda width: abs(width - 2 * holder))
    if wider > holder and emitted(wider) > (1 + FIRST_GAIN) * emitted(holder):
        return wider
    return min(widths, key=lambda width: abs(2 * width - holder))


class Challenge:
    """Runs in turn with the holder, so that both see the same text.

    Parameters
    ----------
    width : int
        Who challenges.
    series : int
        Rounds of one width in a row.
    waking : bool
        Whether the holder is classic decode.
    """

    __slots__ = ("_barred", "_lost", "_ran", "_series", "_turn", "rounds", "width")

    def __init__(self, width: int, series: int, *, waking: bool) -> None:
        self.width = width
        self.rounds = WAKE_ROUNDS if waking else CHALLENGE_ROUNDS
        self._series = series
        self._turn = 0
        self._ran = 0
        self._barred = 0  # rounds that had no room for it
        self._lost: list[float] = []  # seconds that each measured round lost

    def has_turn(self, least: int, limit: int) -> bool:
        """Whether the next round, of a width from ``least`` to ``limit``, is the challenger's."""
        if not least <= self.width <= limit:
            self._barred += 1
            return False
        turn = self._turn
        self._turn = (turn + 1) % (2 * self._series)
        if turn >= self._series:
            return False
        self._ran += 1
        return True

    @property
    def stuck(self) -> bool:
        """Whether it gets nowhere: no room, or no measurements."""
        return self._barred + self._ran - len(self._lost) > STUCK

    @property
    def lost(self) -> float:
        """Seconds that it has cost against the holder, the unmeasured rounds by estimate."""
        if not self._lost:
            return 0.0
        ran = max(self._ran, len(self._lost))
        return max(sum(self._lost) * ran / len(self._lost), 0.0)

    def observe(self, emitted: int, seconds: float, ours: float, theirs: float) -> bool | None:
        """Take in a measured round of the challenger.

        Parameters
        ----------
        emitted : int
            Its tokens.
        seconds : float
            Its wall time.
        ours, theirs : float
            Tokens per second of the holder and of the challenger, as known now.

        Returns
        -------
        bool or None
            Whether the challenge is won; ``None`` while it goes on.
        """
        self._lost.append(seconds - emitted / ours if ours else 0.0)
        measured = len(self._lost)
        if measured >= ABORT_ROUNDS and theirs < ABORT_RATIO * ours:
            return False
        if measured < self.rounds:
            return None
        return theirs > (1 + MARGIN) * ours > 0


class Costs:
    """What challenges may cost, and have.

    Attributes
    ----------
    seconds : float
        All measured time.
    lost : float
        Seconds that challenges have cost.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lost = 0.0

    @property
    def share(self) -> float:
        """Lost in parts of the whole."""
        return self.lost / self.seconds if self.seconds else 0.0

    def allow_more(self, round_seconds: float) -> bool:
        """Whether another challenge may begin, where a round takes so long."""
        return self.lost < PROBE_SHARE * self.seconds + PROBE_ALLOWANCE * round_seconds

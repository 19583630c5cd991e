"""Synthetic acceptance: a drafter that knows the answer and errs on purpose.

For measuring and testing only: with it a round accepts exactly what a script says, so
that the cost of a round is measured apart from the luck of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlxcel.engine.drafters import HostDrafter, Preparation, Tokens

__all__ = ["ScriptedDrafter"]


class ScriptedDrafter(HostDrafter):
    """Proposes a known continuation, wrong from a scripted place on.

    Parameters
    ----------
    answers : mapping of tuple of int to sequence of int
        The target's own output ids for each prompt.
    accepts : sequence of int
        Right drafts in rounds 0, 1, 2, ...; the script repeats. A round proposes as many
        as it may; the draft after the right ones is wrong.
    vocab_size : int
        Wrong drafts are taken modulo it.
    """

    kind = "scripted"

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        accepts: Sequence[int],
        vocab_size: int,
    ) -> None:
        self._answers = {prompt: list(answer) for prompt, answer in answers.items()}
        self._accepts = list(accepts)
        self._vocab_size = vocab_size
        self._rows: dict[int, tuple[list[int], int, int]] = {}  # slot: answer, emitted, round

    def join(
        self, slot: int, prompt: Sequence[int], first: int, preparation: Preparation
    ) -> None:
        """See `Drafter`."""
        self._rows[slot] = (self._answers[tuple(prompt)], 1, 0)

    def observe(self, slots: Sequence[int], counts: Sequence[int], tokens: Tokens) -> None:
        """See `Drafter`."""
        for slot, count in zip(slots, counts, strict=True):
            if count and slot in self._rows:
                answer, emitted, rounds = self._rows[slot]
                self._rows[slot] = (answer, emitted + count, rounds + 1)

    def leave(self, slot: int) -> None:
        """See `Drafter`."""
        self._rows.pop(slot, None)

    def propose(self, slots: Sequence[int], want: Sequence[int], out: Tokens) -> list[int]:
        """See `HostDrafter`."""
        for row, slot in enumerate(slots):
            answer, emitted, rounds = self._rows[slot]
            right = self._accepts[rounds % len(self._accepts)]
            for step in range(want[row]):
                at = emitted + step
                token = answer[at] if at < len(answer) else 0
                out[row, step] = token if step < right else (token + 1) % self._vocab_size
        return list(want)

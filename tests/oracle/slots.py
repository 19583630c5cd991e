"""The slot table in plain Python: lists, no shortcuts, the definition of `SlotTable`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

FREE, RUNNING, FINISHED, DRAINING = range(4)
FINISH_NONE, FINISH_STOP, FINISH_LENGTH = range(3)


def settle_row(
    drafts: Sequence[int], choices: Sequence[int], budget: int, stops: frozenset[int]
) -> tuple[int, int, int]:
    """What one row gives: tokens emitted, drafts accepted, finish."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    emitted = choices[: accepted + 1][:budget]
    for index, token in enumerate(emitted):
        if token in stops:
            return index + 1, accepted, FINISH_STOP
    return len(emitted), accepted, FINISH_LENGTH if len(emitted) == budget else FINISH_NONE


@dataclass
class Slot:
    """One sequence."""

    max_width: int
    state: int = FREE
    length: int = 0
    budget: int = 0
    emitted: int = 0
    width: int = 0
    in_flight: int = 0
    ahead: int = 0
    stops: frozenset[int] = frozenset()
    widths: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def stats(self) -> dict[str, object]:
        """As `SlotTable.stats`."""
        positions = range(self.max_width - 1)
        return {
            "state": self.state,
            "length": self.length,
            "budget": self.budget,
            "emitted": self.emitted,
            "width": self.width,
            "in_flight": self.in_flight,
            "ahead": self.ahead,
            "rounds": len(self.widths),
            "width_min": min(self.widths, default=0),
            "width_max": max(self.widths, default=0),
            "proposed": [self.proposed.count(i) for i in positions],
            "accepted": [self.accepted.count(i) for i in positions],
        }


class SlotOracle:
    """As `SlotTable`; a round's rows are pairs of slot number and width."""

    def __init__(self, slots: int, max_width: int, max_stops: int = 32, rounds: int = 4) -> None:
        self.max_width = max_width
        self.max_stops = max_stops
        self.rounds = rounds
        self.table = [Slot(max_width) for _ in range(slots)]
        self.unsettled: dict[int, list[tuple[int, int]]] = {}
        self.next_round = 0
        self.admitted = 0
        self.released = 0
        self.count: list[int] = []
        self.accepted: list[int] = []
        self.finish: list[int] = []

    @property
    def live(self) -> int:
        """Slots that are not free."""
        return sum(slot.state != FREE for slot in self.table)

    def admit(self, length: int, budget: int, width: int, stops: Iterable[int]) -> int:
        """Give the lowest free slot to a sequence."""
        for index, slot in enumerate(self.table):
            if slot.state == FREE:
                self.table[index] = Slot(
                    self.max_width, RUNNING, length, budget, width=width, stops=frozenset(stops)
                )
                self.admitted += 1
                return index
        raise RuntimeError("no free slot")

    def set_width(self, index: int, width: int) -> None:
        """Set the width a running slot wants."""
        if self.table[index].state != RUNNING:
            raise ValueError("not running")
        self.table[index].width = width

    def plan_round(self, cap: int) -> int:
        """Plan a round over all slots that can run."""
        rows = []
        for index, slot in enumerate(self.table):
            left = slot.budget - slot.in_flight
            if slot.state == RUNNING and left > 0:
                rows.append((index, min(slot.width, cap, left)))
        if not rows:
            return -1
        if len(self.unsettled) == self.rounds:
            raise RuntimeError("too many unsettled rounds")
        for index, width in rows:
            self.table[index].in_flight += 1
            self.table[index].ahead += width
        self.unsettled[self.next_round] = rows
        self.next_round += 1
        return self.next_round - 1

    def round_slots(self, number: int) -> list[int]:
        """Slot of each row."""
        return [index for index, _ in self.unsettled[number]]

    def round_widths(self, number: int) -> list[int]:
        """Width of each row."""
        return [width for _, width in self.unsettled[number]]

    def lengths(self, number: int) -> list[int]:
        """Settled length of each row."""
        return [self.table[index].length for index, _ in self.unsettled[number]]

    def upper_lengths(self, number: int) -> list[int]:
        """Settled length and the widths in flight up to this round, of each row."""
        return [
            self.table[index].length
            + sum(
                width
                for earlier, rows in self.unsettled.items()
                for other, width in rows
                if earlier <= number and other == index
            )
            for index, _ in self.unsettled[number]
        ]

    def upper_length(self, index: int) -> int:
        """Settled length and all widths in flight."""
        return self.table[index].length + self.table[index].ahead

    def narrow(self, number: int, widths: Sequence[int]) -> None:
        """Replace the widths of a round by smaller ones."""
        rows = self.unsettled[number]
        if len(rows) != len(widths) or any(
            not 1 <= new <= old for new, (_, old) in zip(widths, rows, strict=True)
        ):
            raise ValueError("wrong widths")
        for new, (index, old) in zip(widths, rows, strict=True):
            self.table[index].ahead -= old - new
        self.unsettled[number] = [
            (index, new) for new, (index, _) in zip(widths, rows, strict=True)
        ]

    def settle(self, number: int, packed: Sequence[Sequence[Sequence[int]]]) -> int:
        """Take over what the oldest round produced."""
        if number not in self.unsettled:
            raise KeyError(number)
        if number != min(self.unsettled):
            raise ValueError("an older round is unsettled")
        rows = self.unsettled.pop(number)
        results = [
            self._settle(index, width, packed[0][row], packed[1][row])
            for row, (index, width) in enumerate(rows)
        ]
        self.count = [count for count, _, _ in results]
        self.accepted = [accepted for _, accepted, _ in results]
        self.finish = [finish for _, _, finish in results]
        return sum(self.count)

    def _settle(
        self, index: int, width: int, block: Sequence[int], choices: Sequence[int]
    ) -> tuple[int, int, int]:
        slot = self.table[index]
        slot.in_flight -= 1
        slot.ahead -= width
        if slot.state != RUNNING:
            if slot.state == DRAINING and slot.in_flight == 0:
                self._free(slot)
            return 0, 0, FINISH_NONE
        count, accepted, finish = settle_row(block[1:width], choices, slot.budget, slot.stops)
        slot.length += accepted + 1
        slot.budget -= count
        slot.emitted += count
        slot.widths.append(width)
        ended = finish != FINISH_NONE
        slot.proposed += range(min(width - 1, count) if ended else width - 1)
        slot.accepted += range(min(accepted, count))
        if finish != FINISH_NONE:
            slot.state = FINISHED
        return count, accepted, finish

    def release(self, index: int) -> None:
        """Give a slot back."""
        slot = self.table[index]
        if slot.state not in (RUNNING, FINISHED):
            raise ValueError("not in use")
        if slot.in_flight == 0:
            self._free(slot)
        else:
            slot.state = DRAINING

    def _free(self, slot: Slot) -> None:
        slot.state = FREE
        self.released += 1

    def stats(self, index: int) -> dict[str, object]:
        """Everything kept about a slot."""
        return self.table[index].stats()

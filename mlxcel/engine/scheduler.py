"""Who waits, who is being prefilled, who runs: plan, then settle."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mlxcel._fast import SlotTable
from mlxcel.decide.queueing import victims
from mlxcel.decide.rows import PassShape, RowRule
from mlxcel.engine.budget import Budget
from mlxcel.engine.counters import added
from mlxcel.engine.drafters import Tokens
from mlxcel.engine.governor import Governor, Ruling
from mlxcel.engine.load_steering import LoadSteering
from mlxcel.engine.plan import Plan
from mlxcel.engine.sequence import Phase, RequestState
from mlxcel.errors import CapacityError

__all__ = ["Scheduler", "Settled"]


class Settled:
    """One row's part of a settled round."""

    __slots__ = ("accepted", "count", "finish", "row", "state", "width")

    def __init__(
        self, state: RequestState, row: int, width: int, count: int, accepted: int, finish: int
    ) -> None:
        self.state = state
        self.row = row
        self.width = width
        self.count = count
        self.accepted = accepted
        self.finish = finish


class Scheduler:
    """Requests in their phases, around the compiled slot table.

    Parameters
    ----------
    max_rows : int
        Rows that decode together.
    max_width : int
        Largest block width.
    max_stops : int
        Stop token ids per request.
    governor : Governor, optional
        Decides about bursts; without one they always run.
    rule : callable, optional
        Says how passes are padded; not asked before a verify needs it.
    invariant : bool
        Whether classic steps need it too.
    budget : Budget, optional
        Which requests fit into memory together; by default all do.
    alike : int
        Tokens up to which all passes have the same arithmetic; 0 where that is no question. Rows
        whose classic steps lie below draft no block above it.

    Attributes
    ----------
    waiting : list of RequestState
        In the order of service.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_width: int,
        max_stops: int = 64,
        governor: Governor | None = None,
        rule: Callable[[], RowRule] = RowRule,
        invariant: bool = False,
        budget: Budget | None = None,
        alike: int = 0,
    ) -> None:
        self.governor = governor
        self.rule = rule
        self.invariant = invariant
        self.max_rows = max_rows
        self.max_width = max_width
        # One slot more than rows: a row that has ended may still be in a round in flight.
        self.table = SlotTable(max_rows + 1, max_width, max_stops)
        self.budget = budget
        self.alike = alike
        self.waiting: list[RequestState] = []
        self.prefilling: RequestState | None = None
        self.running: dict[int, RequestState] = {}

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.waiting or self.prefilling or self.running)

    @property
    def unfinished(self) -> list[RequestState]:
        """All requests that have not ended, those that run first."""
        prefilling = [] if self.prefilling is None else [self.prefilling]
        return [*self.running.values(), *prefilling, *self.waiting]

    def mtp_b1_should_run(self, width: int) -> Ruling:
        """Whether the next burst runs at a width; the only place that asks gate and policy."""
        if self.governor is None:
            return Ruling(True, "default", "a drafter is loaded")
        return self.governor.should_run(width)

    def accept(self, state: RequestState, most: int) -> None:
        """Let a new request wait.

        Raises
        ------
        CapacityError
            ``most`` wait already, or it would not fit into memory even alone.
        """
        if len(self.waiting) >= most:
            raise CapacityError(
                f"{len(self.waiting)} requests wait already and MLXCEL_MAX_QUEUE is {most}: "
                "try again when some have ended"
            )
        if self.budget is not None:
            self.budget.check(state)
        self.enqueue(state)

    def enqueue(self, state: RequestState) -> None:
        """Let a request wait, behind those of its rank."""
        state.phase = Phase.WAITING
        bisect.insort(self.waiting, state, key=lambda each: each.rank)

    def next_to_prefill(self) -> RequestState | None:
        """Take the next waiting request, if there is room for it; nobody overtakes it."""
        if self.prefilling is not None or not self.waiting:
            return None
        if self.table.live > self.max_rows or not self._fits(list(self.running.values())):
            return None
        self.prefilling = self.waiting.pop(0)
        self.prefilling.phase = Phase.PREFILL
        return self.prefilling

    def _fits(self, others: list[RequestState]) -> bool:
        """Whether the first request of the queue has room beside some that run."""
        if len(others) >= self.max_rows:
            return False
        return self.budget is None or self.budget.fits([*others, self.waiting[0]])

    def outranked_reader(self) -> RequestState | None:
        """The request whose prompt is being read, if one of earlier priority waits."""
        reader = self.prefilling
        if reader is None or not self.waiting:
            return None
        return reader if self.waiting[0].rank.priority < reader.rank.priority else None

    def to_push_back(self) -> list[RequestState]:
        """Running requests that make room for the first of the queue, which outranks them.

        None in invariant numerics: what a resumed row reads in chunks it had made in passes of
        decode, with other last bits. None while a row is about to leave by itself.
        """
        running = list(self.running.values())
        if self.prefilling is not None or not self.waiting or not running or self._fits(running):
            return []
        if self.invariant or any(self._planned_out(state) for state in running):
            return []
        found = victims(
            self.waiting[0].rank,
            [state.rank for state in running],
            lambda kept: self._fits([running[at] for at in kept]),
        )
        return [running[at] for at in found]

    def _planned_out(self, state: RequestState) -> bool:
        """Whether the rounds in flight hold all that a running request may still emit."""
        counters = self.table.stats(state.slot)
        return counters["budget"] <= counters["in_flight"]

    def push_back(self, state: RequestState) -> None:
        """Let a request wait again, with what it has produced."""
        if self.running.get(state.slot) is state:
            state.earlier = added(state.earlier, self.table.stats(state.slot))
            self.release(state)
            state.slot = -1
        state.preemptions += 1
        self.enqueue(state)

    def admit(self, state: RequestState) -> int:
        """Give a prefilled request, whose last token is not fed yet, a slot."""
        state.slot = self.table.admit(
            len(state.context),
            state.params.max_tokens - len(state.token_ids),
            state.decision.width,
            sorted(state.stop_ids),
        )
        state.width_set = state.decision.width
        state.phase = Phase.RUNNING
        self.running[state.slot] = state
        self.prefilling = None
        return state.slot

    def plan(self, before: Plan | None) -> Plan | None:
        """Plan the next round; ``before`` is the round in flight, if any."""
        if before is not None and self._may_be_last(before):
            return None
        load = self._set_widths(0 if before is None else 1)
        number = self.table.plan_round(self.max_width)
        if number < 0:
            return None
        slots = [int(slot) for slot in self.table.round_slots(number)]
        if not load:
            self._count_probes(slots)
        widths = [int(width) for width in self.table.round_widths(number)]
        known = len(slots) == 1 and (before is None or before.width == 1)
        exact = self.table.upper_length(slots[0]) - widths[0] if known else None
        bound, first = self._bound(slots, widths), before is None
        return Plan(number, slots, widths, bound, exact, load, widths, first)

    def _may_be_last(self, before: Plan) -> bool:
        """Whether the only request may end with the round in flight.

        To wait for it costs the host's part of a round, once; to go on without knowing costs a
        whole one where it was the last, and the last tokens come later by that. Of several rows
        none waits: the others would be gathered twice for it.
        """
        if len(self.running) != 1 or before.width == 1:
            return False
        ((slot, state),) = self.running.items()
        left = state.params.max_tokens - len(state.token_ids)
        return before.slots == [slot] and before.widths[0] >= left

    def _set_widths(self, in_flight: int) -> int:
        """Tell the slot table what changes; return the width of the round if the load chose it."""
        alone, quiet = len(self.running) == 1, self.prefilling is None
        chosen, widths = 0, dict[int, int]()
        if self.load is not None:
            chosen, widths = self.load.choose(
                self.running, joining=self.joining, in_flight=in_flight
            )
            if self._unlike(max(chosen, *widths.values())):
                chosen, widths = 1, dict.fromkeys(self.running, 1)
        for slot, state in self.running.items():
            width = widths.get(slot) or state.next_width(in_flight, alone=alone, quiet=quiet)
            if width != state.width_set:
                self.table.set_width(slot, width)
                state.width_set = width
        return chosen

    def _unlike(self, width: int) -> bool:
        """Whether a block would be computed by other kernels than the rows' classic steps."""
        rows = len(self.running)
        return rows <= self.alike < rows * width

    @property
    def load(self) -> LoadSteering | None:
        """What chooses the widths of rounds of several rows; ``None`` while fewer run."""
        several = self.governor is not None and len(self.running) > 1
        return self.governor.crowd if several and self.governor is not None else None

    @property
    def joining(self) -> int:
        """Requests that will run beside these: the one being read, and those that wait for that."""
        if self.prefilling is None:
            return 0
        room = self.max_rows - len(self.running)
        return max(min(1 + len(self.waiting), room), 1)

    @property
    def drafts_next(self) -> bool:
        """Whether the next round drafts, as far as that is decided."""
        load = self.load
        if load is None:
            return any(state.decision.run for state in self.running.values())
        width = load.peek(self.running, joining=self.joining)
        return width > 1 and not self._unlike(width)

    def learn(self, plan: Plan, rows: list[Settled], seconds: float | None) -> None:
        """Tell the table of round costs of a round that it had a say in."""
        if plan.load and self.governor is not None and self.governor.crowd is not None:
            self.governor.crowd.settled(plan, rows, seconds)

    def _count_probes(self, slots: list[int]) -> None:
        for slot in slots:
            state = self.running.get(slot)
            if state is not None and state.probes_left:
                state.probes_left -= 1

    def _bound(self, slots: list[int], widths: list[int]) -> int:
        """Upper bound of length + block: every row writes as much as the widest."""
        lengths = [
            self.table.upper_length(slot) - width for slot, width in zip(slots, widths, strict=True)
        ]
        return max(lengths) + max(widths)

    def shape(self, plan: Plan) -> PassShape:
        """Shape of the target's pass of a planned round."""
        if plan.width == 1 and not self.invariant:
            return PassShape(1, plan.bound, plan.exact)
        requests = [self.running[slot].request for slot in plan.slots]
        return self.rule().shape(
            len(plan.slots),
            plan.width,
            bound=plan.bound,
            exact=plan.exact,
            reserved=max(len(r.prompt_ids) + r.params.max_tokens for r in requests),
        )

    def narrow(self, plan: Plan, widths: list[int]) -> Plan:
        """Lower the widths of a planned round to what was really proposed."""
        if widths == plan.widths:
            return plan
        self.table.narrow(plan.number, np.array(widths, dtype=np.int32))
        return replace(plan, widths=widths, bound=self._bound(plan.slots, widths))

    def settle(self, plan: Plan, packed: Tokens) -> list[Settled]:
        """Book a round that has been read; return the rows that are still running."""
        states = [self.running.get(slot) for slot in plan.slots]
        for state, width in zip(states, plan.widths, strict=True):
            if state is not None:
                state.widths[width] = state.widths.get(width, 0) + 1
        self.table.settle(plan.number, packed)
        table = self.table
        rows = zip(
            states, plan.widths, table.count, table.accepted, table.finish, strict=False
        )
        return [
            Settled(state, row, width, int(count), int(accepted), int(finish))
            for row, (state, width, count, accepted, finish) in enumerate(rows)
            if state is not None and count
        ]

    def clear(self) -> None:
        """Forget every unfinished request."""
        for state in list(self.running.values()):
            self.release(state)
        self.waiting.clear()
        self.prefilling = None

    def release(self, state: RequestState) -> None:
        """Free the slot of a running request; rounds in flight ignore it from now on."""
        del self.running[state.slot]
        self.table.release(state.slot)

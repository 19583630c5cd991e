"""Slot table: which sequences run, how wide, and what a verified round gave them.

Every slot holds one sequence. `plan_round` chooses rows and widths, `settle` takes the
verify block and the target's choices and works out accepted drafts, stop ids and budgets for
all rows in one call. Several rounds may be in flight; they settle in the order of planning.

Arrays, all owned by the table, with views taken once (S slots, R rounds, W the largest width):

    per slot            int32 (S,)          state, length, budget, emitted, width, ...
    stop ids            uint32 (S, max_stops)
    position counters   int32 (S, W - 1)    proposed, accepted
    plans               int32 (R, S)        slots, widths, lengths, upper lengths
    results by row      int32 (S,)          count, accepted, finish

The views handed out are read-only and belong to the table. Not thread-safe: one engine thread
owns a table.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

from mlxcel._fast.common cimport checked_int, token_t

from array import array

__all__ = [
    "DRAINING",
    "FINISHED",
    "FINISH_LENGTH",
    "FINISH_NONE",
    "FINISH_STOP",
    "FREE",
    "RUNNING",
    "SlotTable",
]

cdef enum:
    IS_FREE = 0
    IS_RUNNING = 1
    IS_FINISHED = 2
    IS_DRAINING = 3
    ENDED_NOT = 0
    ENDED_STOP = 1
    ENDED_LENGTH = 2
    MAX_SLOTS = 65536
    MAX_WIDTH = 4096
    MAX_STOPS = 4096
    MAX_ROUNDS = 1024

cdef int64_t MAX_LENGTH = 2147483647
cdef int64_t MAX_TOKEN = 4294967295

FREE = IS_FREE
RUNNING = IS_RUNNING
FINISHED = IS_FINISHED
DRAINING = IS_DRAINING

FINISH_NONE = ENDED_NOT
FINISH_STOP = ENDED_STOP
FINISH_LENGTH = ENDED_LENGTH

cdef tuple STATE_NAMES = ("FREE", "RUNNING", "FINISHED", "DRAINING")


cdef object zeros(str code, Py_ssize_t items):
    """An array of `items` zeros."""
    return array(code, (0,)) * items


cdef object table_of(object flat, Py_ssize_t rows, Py_ssize_t columns):
    """The 32-bit array `flat` seen as `(rows, columns)`."""
    return memoryview(flat).cast("B").cast(flat.typecode, (rows, columns))


cdef inline int32_t matching_prefix(
    const token_t[:, :, ::1] packed, Py_ssize_t row, int32_t width
) except -1:
    """Leading drafts of `row` that equal the target's own choices."""
    cdef int32_t position = 0
    while position < width - 1 and packed[0, row, position + 1] == packed[1, row, position]:
        position += 1
    return position


@cython.final
cdef class SlotTable:
    """Fixed number of slots, the rounds planned over them and what settling them gave.

    Every method raises before it touches anything, so a failed call changes nothing.

    Parameters
    ----------
    slots : int
        Number of sequences that can be held at once, 1..65536.
    max_width : int
        Largest block width (1 bonus token and `max_width - 1` drafts), 1..4096.
    max_stops : int, optional
        Largest number of stop ids per sequence, 0..4096.
    rounds : int, optional
        Largest number of rounds planned and not settled, 1..1024.

    Raises
    ------
    TypeError
        If a size is not an int (bool is not one).
    ValueError
        If a size is out of range.

    Notes
    -----
    *Thread safety*: not thread-safe; one engine thread owns a table.
    """

    cdef readonly int32_t slots
    """Number of slots."""
    cdef readonly int32_t max_width
    """Largest block width."""
    cdef readonly int32_t max_stops
    """Largest number of stop ids per sequence."""
    cdef readonly int32_t rounds
    """Largest number of unsettled rounds."""
    cdef readonly int64_t admitted
    """Sequences admitted so far."""
    cdef readonly int64_t released
    """Slots that became free again so far; `admitted - released == live`."""
    cdef readonly int32_t live
    """Slots that are not free."""

    cdef readonly object count
    """Tokens each row of the last settled round emitted; int32 (slots,), read-only."""
    cdef readonly object accepted
    """Drafts of each row of the last settled round that held; int32 (slots,), read-only."""
    cdef readonly object finish
    """FINISH_* of each row of the last settled round; int32 (slots,), read-only."""

    cdef int64_t _oldest
    cdef int64_t _next
    cdef int32_t _first_free

    cdef int32_t[::1] _state
    cdef int32_t[::1] _length
    cdef int32_t[::1] _budget
    cdef int32_t[::1] _emitted
    cdef int32_t[::1] _wanted
    cdef int32_t[::1] _in_flight
    cdef int32_t[::1] _ahead
    cdef int32_t[::1] _settled
    cdef int32_t[::1] _width_min
    cdef int32_t[::1] _width_max
    cdef int32_t[::1] _stop_count
    cdef token_t[:, ::1] _stops
    cdef int32_t[:, ::1] _proposed_at
    cdef int32_t[:, ::1] _accepted_at

    cdef int32_t[::1] _plan_rows
    cdef int32_t[:, ::1] _plan_slots
    cdef int32_t[:, ::1] _plan_widths
    cdef int32_t[:, ::1] _plan_lengths
    cdef int32_t[:, ::1] _plan_uppers
    cdef object _slots_flat
    cdef object _widths_flat
    cdef object _lengths_flat
    cdef object _uppers_flat
    cdef int32_t[::1] _reach

    cdef int32_t[::1] _count
    cdef int32_t[::1] _accepted
    cdef int32_t[::1] _finish

    def __cinit__(self, slots, max_width, max_stops=32, rounds=4):
        self.slots = checked_int(slots, "slots", 1, MAX_SLOTS)
        self.max_width = checked_int(max_width, "max_width", 1, MAX_WIDTH)
        self.max_stops = checked_int(max_stops, "max_stops", 0, MAX_STOPS)
        self.rounds = checked_int(rounds, "rounds", 1, MAX_ROUNDS)
        self._own_slots()
        self._own_plans()
        self._own_results()

    cdef int _own_slots(self) except -1:
        """Allocate what is kept per slot; a two-dimensional view needs a column at least."""
        cdef Py_ssize_t drafts = max(1, self.max_width - 1)
        cdef Py_ssize_t stops = max(1, self.max_stops)
        self._state = zeros("i", self.slots)
        self._length = zeros("i", self.slots)
        self._budget = zeros("i", self.slots)
        self._emitted = zeros("i", self.slots)
        self._wanted = zeros("i", self.slots)
        self._in_flight = zeros("i", self.slots)
        self._ahead = zeros("i", self.slots)
        self._settled = zeros("i", self.slots)
        self._width_min = zeros("i", self.slots)
        self._width_max = zeros("i", self.slots)
        self._stop_count = zeros("i", self.slots)
        self._stops = table_of(zeros("I", self.slots * stops), self.slots, stops)
        self._proposed_at = table_of(zeros("i", self.slots * drafts), self.slots, drafts)
        self._accepted_at = table_of(zeros("i", self.slots * drafts), self.slots, drafts)
        return 0

    cdef int _own_plans(self) except -1:
        """Allocate the ring of plans; round r lives in entry r modulo `rounds`."""
        cdef Py_ssize_t items = <Py_ssize_t> self.rounds * self.slots
        cdef list flat = [zeros("i", items) for _ in range(4)]
        self._plan_rows = zeros("i", self.rounds)
        self._plan_slots = table_of(flat[0], self.rounds, self.slots)
        self._plan_widths = table_of(flat[1], self.rounds, self.slots)
        self._plan_lengths = table_of(flat[2], self.rounds, self.slots)
        self._plan_uppers = table_of(flat[3], self.rounds, self.slots)
        self._slots_flat = memoryview(flat[0]).toreadonly()
        self._widths_flat = memoryview(flat[1]).toreadonly()
        self._lengths_flat = memoryview(flat[2]).toreadonly()
        self._uppers_flat = memoryview(flat[3]).toreadonly()
        self._reach = zeros("i", self.slots)
        return 0

    cdef int _own_results(self) except -1:
        """Allocate what the last settled round gave, by row."""
        cdef list flat = [zeros("i", self.slots) for _ in range(3)]
        self._count = flat[0]
        self._accepted = flat[1]
        self._finish = flat[2]
        self.count = memoryview(flat[0]).toreadonly()
        self.accepted = memoryview(flat[1]).toreadonly()
        self.finish = memoryview(flat[2]).toreadonly()
        return 0

    # --- sequences ---

    def admit(self, length, budget, width, stops) -> int:
        """Give the lowest free slot to a sequence.

        Parameters
        ----------
        length : int
            Tokens of the sequence that are already in the target's cache, at least 0.
        budget : int
            Tokens it may emit, at least 1.
        width : int
            Block width it wants, 1..max_width.
        stops : iterable of int
            Stop ids, each in the range of uint32, at most `max_stops`.

        Returns
        -------
        int
            The slot, now RUNNING with all its counters at 0.

        Raises
        ------
        RuntimeError
            If no slot is free.
        TypeError
            If a number is not an int (bool is not one).
        ValueError
            If a number is out of range, there are too many stop ids, or length and budget
            together leave the range of int32.
        """
        # The last block may reach past the budget, and so may the rounds in flight behind it.
        cdef int64_t slack = <int64_t> self.max_width * (self.rounds + 1)
        cdef int64_t start = checked_int(length, "length", 0, MAX_LENGTH)
        cdef int64_t allowed = checked_int(budget, "budget", 1, MAX_LENGTH)
        cdef int32_t wanted = checked_int(width, "width", 1, self.max_width)
        cdef list ids = [checked_int(stop, "stop id", 0, MAX_TOKEN) for stop in stops]
        cdef int32_t slot = self._first_free
        cdef Py_ssize_t position
        if len(ids) > self.max_stops:
            raise ValueError(f"stops must be at most {self.max_stops}, got {len(ids)}")
        if start + allowed + slack > MAX_LENGTH:
            raise ValueError(
                f"length {start} and budget {allowed} exceed {MAX_LENGTH - slack} together"
            )
        while slot < self.slots and self._state[slot] != IS_FREE:
            slot += 1
        if slot == self.slots:
            raise RuntimeError(f"no free slot: all {self.slots} are in use")
        self._clear(slot)
        self._length[slot] = start
        self._budget[slot] = allowed
        self._wanted[slot] = wanted
        self._stop_count[slot] = len(ids)
        for position in range(len(ids)):
            self._stops[slot, position] = ids[position]
        self._state[slot] = IS_RUNNING
        self._first_free = slot + 1
        self.admitted += 1
        self.live += 1
        return slot

    cdef int _clear(self, int32_t slot) except -1:
        """Set the counters of `slot` to zero."""
        self._emitted[slot] = 0
        self._in_flight[slot] = 0
        self._ahead[slot] = 0
        self._settled[slot] = 0
        self._width_min[slot] = 0
        self._width_max[slot] = 0
        self._proposed_at[slot, :] = 0
        self._accepted_at[slot, :] = 0
        return 0

    def set_width(self, slot, width) -> None:
        """Set the block width that a running slot wants from the next plan on.

        Parameters
        ----------
        slot : int
            A RUNNING slot.
        width : int
            1..max_width.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If an argument is not an int.
        ValueError
            If the slot is not RUNNING or the width is out of range.
        """
        cdef int32_t index = self._slot_index(slot)
        cdef int32_t wanted = checked_int(width, "width", 1, self.max_width)
        if self._state[index] != IS_RUNNING:
            raise ValueError(f"slot {index} is {STATE_NAMES[self._state[index]]}, not RUNNING")
        self._wanted[index] = wanted

    def release(self, slot) -> None:
        """Give a slot back, at once or when its last round in flight settles.

        Parameters
        ----------
        slot : int
            A RUNNING or FINISHED slot; it becomes FREE, or DRAINING while rounds are in flight.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int.
        ValueError
            If the slot is FREE or DRAINING.
        """
        cdef int32_t index = self._slot_index(slot)
        cdef int32_t state = self._state[index]
        if state != IS_RUNNING and state != IS_FINISHED:
            raise ValueError(f"slot {index} is {STATE_NAMES[state]}, not RUNNING or FINISHED")
        if self._in_flight[index] == 0:
            self._free(index)
        else:
            self._state[index] = IS_DRAINING

    cdef int _free(self, int32_t slot) except -1:
        """Make `slot` FREE and count it."""
        self._state[slot] = IS_FREE
        self._first_free = min(self._first_free, slot)
        self.released += 1
        self.live -= 1
        return 0

    cdef int32_t _slot_index(self, object slot) except -1:
        """`slot` as a valid index."""
        cdef int64_t index = checked_int(slot, "slot", -MAX_LENGTH, MAX_LENGTH)
        if index < 0 or index >= self.slots:
            raise IndexError(f"slot must be in 0..{self.slots - 1}, got {index}")
        return index

    # --- rounds ---

    def plan_round(self, int64_t cap) -> int:
        """Plan one round over every running slot that still has a token to emit.

        A slot takes part while its budget exceeds its rounds in flight, as each of those
        yields at least one token. Its width is the smallest of the wanted width, `cap` and
        what remains of the budget.

        Parameters
        ----------
        cap : int
            Largest width in this round, at least 1.

        Returns
        -------
        int
            Number of the round, counted from 0, or -1 when no slot can run.

        Raises
        ------
        RuntimeError
            If a slot could run but `rounds` rounds are unsettled.
        ValueError
            If `cap` is below 1.
        """
        cdef Py_ssize_t entry
        cdef int32_t slot
        cdef int32_t rows = 0
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        for slot in range(self.slots):
            if self._state[slot] == IS_RUNNING and self._budget[slot] > self._in_flight[slot]:
                rows += 1
        if rows == 0:
            return -1
        if self._next - self._oldest == self.rounds:
            raise RuntimeError(f"{self.rounds} rounds are unsettled; settle one first")
        entry = self._next % self.rounds
        rows = 0
        for slot in range(self.slots):
            if self._state[slot] == IS_RUNNING and self._budget[slot] > self._in_flight[slot]:
                self._plan_row(entry, rows, slot, cap)
                rows += 1
        self._plan_rows[entry] = rows
        self._next += 1
        return self._next - 1

    cdef inline int _plan_row(
        self, Py_ssize_t entry, Py_ssize_t row, int32_t slot, int64_t cap
    ) except -1:
        """Put `slot` into `row` of a plan."""
        cdef int32_t width = self._budget[slot] - self._in_flight[slot]
        if self._wanted[slot] < width:
            width = self._wanted[slot]
        if cap < width:
            width = <int32_t> cap
        self._plan_slots[entry, row] = slot
        self._plan_widths[entry, row] = width
        self._in_flight[slot] += 1
        self._ahead[slot] += width
        return 0

    cdef Py_ssize_t _entry(self, int64_t round) except -1:
        """Where an unsettled round is kept."""
        if not self._oldest <= round < self._next:
            raise KeyError(f"round {round} is not unsettled")
        return round % self.rounds

    cdef object _of_entry(self, object flat, Py_ssize_t entry):
        """The rows of a plan in one of the flat views."""
        cdef Py_ssize_t first = entry * self.slots
        return flat[first:first + self._plan_rows[entry]]

    def round_slots(self, int64_t round) -> memoryview:
        """Slot of each row of an unsettled round, ascending.

        Parameters
        ----------
        round : int
            An unsettled round.

        Returns
        -------
        memoryview
            int32, (rows,), read-only; its content stays until `rounds` more rounds are planned.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        """
        return self._of_entry(self._slots_flat, self._entry(round))

    def round_widths(self, int64_t round) -> memoryview:
        """Block width of each row of an unsettled round.

        Parameters
        ----------
        round : int
            An unsettled round.

        Returns
        -------
        memoryview
            int32, (rows,), read-only; its content stays until `rounds` more rounds are
            planned, and follows `narrow`.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        """
        return self._of_entry(self._widths_flat, self._entry(round))

    def lengths(self, int64_t round) -> memoryview:
        """Settled length of each row's sequence at the time of the call.

        Parameters
        ----------
        round : int
            An unsettled round.

        Returns
        -------
        memoryview
            int32, (rows,), read-only, in tokens; rewritten by the next call for this round.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        """
        cdef Py_ssize_t entry = self._entry(round)
        cdef Py_ssize_t row
        for row in range(self._plan_rows[entry]):
            self._plan_lengths[entry, row] = self._length[self._plan_slots[entry, row]]
        return self._of_entry(self._lengths_flat, entry)

    def upper_lengths(self, int64_t round) -> memoryview:
        """Largest length that each row's sequence can have once this round is done.

        It is the settled length and the widths of the slot's unsettled rounds up to and
        including this one.

        Parameters
        ----------
        round : int
            An unsettled round.

        Returns
        -------
        memoryview
            int32, (rows,), read-only, in tokens; rewritten by the next call for this round.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        """
        cdef Py_ssize_t entry = self._entry(round)
        cdef Py_ssize_t row, earlier
        cdef int64_t number
        cdef int32_t slot
        for row in range(self._plan_rows[entry]):
            slot = self._plan_slots[entry, row]
            self._reach[slot] = self._length[slot]
        for number in range(self._oldest, round + 1):
            earlier = number % self.rounds
            for row in range(self._plan_rows[earlier]):
                self._reach[self._plan_slots[earlier, row]] += self._plan_widths[earlier, row]
        for row in range(self._plan_rows[entry]):
            self._plan_uppers[entry, row] = self._reach[self._plan_slots[entry, row]]
        return self._of_entry(self._uppers_flat, entry)

    def narrow(self, int64_t round, const int32_t[::1] widths not None) -> None:
        """Replace the widths of an unsettled round by smaller ones.

        Parameters
        ----------
        round : int
            An unsettled round.
        widths : int32 array, (rows,)
            New width of each row, 1..its present width.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        TypeError
            If `widths` is not an array.
        ValueError
            If its type, length or a width is wrong.
        """
        cdef Py_ssize_t entry = self._entry(round)
        cdef int32_t rows = self._plan_rows[entry]
        cdef Py_ssize_t row
        if widths.shape[0] != rows:
            raise ValueError(f"widths must have {rows} rows, got {widths.shape[0]}")
        for row in range(rows):
            if not 1 <= widths[row] <= self._plan_widths[entry, row]:
                raise ValueError(
                    f"width of row {row} must be in 1..{self._plan_widths[entry, row]}, "
                    f"got {widths[row]}"
                )
        for row in range(rows):
            self._ahead[self._plan_slots[entry, row]] += widths[row] - self._plan_widths[entry, row]
            self._plan_widths[entry, row] = widths[row]

    # --- settling ---

    def settle(self, int64_t round, const token_t[:, :, ::1] packed not None) -> int:
        """Take over what the oldest unsettled round produced, for all its rows.

        A draft counts as accepted while it and all before it equal the target's choices. The
        row emits the choices up to and including the first one that no draft matched, clipped
        to its budget, then cut after the first stop id. Rows of slots that no longer run give
        nothing. The results are in `count`, `accepted` and `finish`.

        Parameters
        ----------
        round : int
            The oldest unsettled round.
        packed : uint32 array, (2, rows, K), C-contiguous
            `packed[0]` is the block that was verified, the bonus token and the drafts;
            `packed[1]` is the target's choice after each of them. Rows after the planned ones
            and columns after a row's width are padding.

        Returns
        -------
        int
            Tokens emitted by all rows.

        Raises
        ------
        KeyError
            If the round is not known or is settled.
        TypeError
            If `packed` is not an array.
        ValueError
            If an older round is unsettled, or the array's type or shape is wrong.
        """
        cdef Py_ssize_t entry = self._entry(round)
        cdef int32_t rows = self._plan_rows[entry]
        cdef int64_t emitted = 0
        cdef Py_ssize_t row
        if round != self._oldest:
            raise ValueError(f"round {self._oldest} must settle before round {round}")
        self._check_packed(packed, entry)
        for row in range(rows):
            emitted += self._settle_row(packed, row, entry)
        self._oldest += 1
        return emitted

    cdef int _check_packed(self, const token_t[:, :, ::1] packed, Py_ssize_t entry) except -1:
        """Raise unless `packed` covers the planned rows and widths."""
        cdef int32_t rows = self._plan_rows[entry]
        cdef int32_t widest = 1
        cdef Py_ssize_t row
        for row in range(rows):
            widest = max(widest, self._plan_widths[entry, row])
        if packed.shape[0] != 2 or packed.shape[1] < rows or packed.shape[2] < widest:
            raise ValueError(
                f"packed must be (2, rows >= {rows}, columns >= {widest}), got "
                f"({packed.shape[0]}, {packed.shape[1]}, {packed.shape[2]})"
            )
        return 0

    cdef inline int32_t _settle_row(
        self, const token_t[:, :, ::1] packed, Py_ssize_t row, Py_ssize_t entry
    ) except -1:
        """Settle one row; returns the tokens it emitted."""
        cdef int32_t slot = self._plan_slots[entry, row]
        cdef int32_t width = self._plan_widths[entry, row]
        cdef int32_t accepted, count, kept, proposed
        self._in_flight[slot] -= 1
        self._ahead[slot] -= width
        self._count[row] = 0
        self._accepted[row] = 0
        self._finish[row] = ENDED_NOT
        if self._state[slot] != IS_RUNNING:
            if self._state[slot] == IS_DRAINING and self._in_flight[slot] == 0:
                self._free(slot)
            return 0
        accepted = matching_prefix(packed, row, width)
        count = min(accepted + 1, self._budget[slot])
        kept = self._through_stop(packed, row, slot, count)
        if kept > 0:
            count = kept
            self._finish[row] = ENDED_STOP
        elif count == self._budget[slot]:
            self._finish[row] = ENDED_LENGTH
        self._count[row] = count
        self._accepted[row] = accepted
        self._length[slot] += accepted + 1
        self._budget[slot] -= count
        self._emitted[slot] += count
        proposed = width - 1
        if self._finish[row] != ENDED_NOT:
            self._state[slot] = IS_FINISHED
            proposed = min(proposed, count)
        self._count_row(slot, proposed, min(accepted, count))
        self._count_width(slot, width)
        return count

    cdef inline int32_t _through_stop(
        self, const token_t[:, :, ::1] packed, Py_ssize_t row, int32_t slot, int32_t count
    ) except -1:
        """Tokens up to and including the first stop id among `count` choices, 0 if none."""
        cdef int32_t position, stop, hit
        for position in range(count):
            hit = 0
            for stop in range(self._stop_count[slot]):
                hit |= self._stops[slot, stop] == packed[1, row, position]
            if hit:
                return position + 1
        return 0

    cdef inline int _count_row(
        self, int32_t slot, int32_t proposed, int32_t accepted
    ) except -1:
        """Count a running slot's drafts, but none past the end."""
        cdef int32_t position
        for position in range(proposed):
            self._proposed_at[slot, position] += 1
        for position in range(accepted):
            self._accepted_at[slot, position] += 1
        return 0

    cdef inline int _count_width(self, int32_t slot, int32_t width) except -1:
        """Count a running slot's round."""
        if self._settled[slot] == 0 or width < self._width_min[slot]:
            self._width_min[slot] = width
        if width > self._width_max[slot]:
            self._width_max[slot] = width
        self._settled[slot] += 1
        return 0

    # --- reading ---

    @property
    def unsettled(self) -> int:
        """Rounds planned and not settled."""
        return self._next - self._oldest

    def upper_length(self, slot) -> int:
        """Largest length a slot's sequence can have once all its rounds in flight are done.

        Parameters
        ----------
        slot : int
            Any slot.

        Returns
        -------
        int
            Settled length and the widths in flight, in tokens.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int.
        """
        cdef int32_t index = self._slot_index(slot)
        return self._length[index] + self._ahead[index]

    def stats(self, slot) -> dict:
        """Everything that is kept about a slot.

        Parameters
        ----------
        slot : int
            Any slot; a FREE one still shows its last sequence.

        Returns
        -------
        dict
            `state`; `length`, `budget` (left), `emitted` in tokens; `width` (wanted);
            `in_flight` in rounds and `ahead` in tokens; `rounds` settled while running;
            `width_min` and `width_max` of those rounds (0 before the first); `proposed` and
            `accepted`, lists by draft position: how often a draft was proposed there, but for
            those past the end, and how often it held, with all before it.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int.
        """
        cdef int32_t index = self._slot_index(slot)
        cdef int32_t position
        return {
            "state": self._state[index],
            "length": self._length[index],
            "budget": self._budget[index],
            "emitted": self._emitted[index],
            "width": self._wanted[index],
            "in_flight": self._in_flight[index],
            "ahead": self._ahead[index],
            "rounds": self._settled[index],
            "width_min": self._width_min[index],
            "width_max": self._width_max[index],
            "proposed": [
                self._proposed_at[index, position] for position in range(self.max_width - 1)
            ],
            "accepted": [
                self._accepted_at[index, position] for position in range(self.max_width - 1)
            ],
        }

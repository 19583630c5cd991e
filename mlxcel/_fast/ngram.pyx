"""N-gram index: for each slot, where the last tokens of its history occurred before.

A history is a trie of its n-grams up to `max_n` tokens: the node of an n-gram is the child,
by its last token, of the node of the n-gram one shorter that ends one token earlier. A node
is found by hashing (parent, token) and comparing both, so collisions cost time and never a
wrong match. Each node remembers the token index that followed its last occurrence.

Arrays, owned by one history: tokens uint32 (size,), nodes as three uint32 arrays (parent,
edge, follow), a uint32 hash table of node numbers (0 is empty), and by n the current node
and the index that followed the previous occurrence of the last n tokens. Not thread-safe:
one engine thread owns an index.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t

from mlxcel._fast.common cimport checked_int, token_t

from array import array

__all__ = ["NgramIndex"]

cdef enum:
    MAX_SLOTS = 65536
    MAX_N = 64
    FIRST_TOKENS = 64

cdef int64_t MAX_NODES = 1073741824


cdef object zeros(Py_ssize_t items):
    """A uint32 array of `items` zeros."""
    return array("I", (0,)) * items


cdef inline uint32_t mixed(uint32_t parent, uint32_t token) noexcept:
    """Hash of an edge of the trie."""
    cdef uint32_t value = (parent * <uint32_t> 0x9E3779B1) ^ (token + <uint32_t> 0x7F4A7C15)
    value = (value ^ (value >> 16)) * <uint32_t> 0x85EBCA6B
    value = (value ^ (value >> 13)) * <uint32_t> 0xC2B2AE35
    return value ^ (value >> 16)


@cython.final
cdef class _History:
    """The tokens of one slot and the trie over them."""

    cdef int32_t max_n
    cdef int64_t size
    cdef int64_t nodes
    cdef token_t[::1] tokens
    cdef uint32_t[::1] parent
    cdef token_t[::1] edge
    cdef uint32_t[::1] follow
    cdef uint32_t[::1] table
    cdef uint32_t[::1] path
    cdef uint32_t[::1] match

    def __cinit__(self, int32_t max_n):
        self.max_n = max_n
        self.nodes = 1  # node 0 is the root
        self.tokens = zeros(FIRST_TOKENS)
        self.parent = zeros(FIRST_TOKENS)
        self.edge = zeros(FIRST_TOKENS)
        self.follow = zeros(FIRST_TOKENS)
        self.table = zeros(2 * FIRST_TOKENS)
        self.path = zeros(max_n + 1)
        self.match = zeros(max_n + 1)

    cdef int64_t nbytes(self) except -1:
        """Bytes of all arrays."""
        return 4 * (
            self.tokens.shape[0] + 3 * self.parent.shape[0] + self.table.shape[0]
            + 2 * self.path.shape[0]
        )

    cdef int reserve(self, int64_t more) except -1:
        """Make room for `more` tokens, so that appending them cannot fail."""
        cdef int64_t tokens = self.size + more
        cdef int64_t nodes = self.nodes + more * self.max_n
        if nodes > MAX_NODES:
            raise ValueError(f"history of {tokens} tokens is too long")
        if nodes > self.parent.shape[0]:
            self.grow_nodes(max(nodes, 2 * self.parent.shape[0]))
        if tokens > self.tokens.shape[0]:
            self.tokens = self.grown(self.tokens, max(tokens, 2 * self.tokens.shape[0]), self.size)
        return 0

    cdef uint32_t[::1] grown(self, uint32_t[::1] old, int64_t items, int64_t used):
        """A copy of `old` with room for `items`."""
        cdef uint32_t[::1] new = zeros(items)
        new[:used] = old[:used]
        return new

    cdef int grow_nodes(self, int64_t capacity) except -1:
        """Make room for `capacity` nodes; the table stays at most half full."""
        cdef int64_t places = self.table.shape[0]
        cdef uint32_t[::1] parent = self.grown(self.parent, capacity, self.nodes)
        cdef uint32_t[::1] edge = self.grown(self.edge, capacity, self.nodes)
        cdef uint32_t[::1] follow = self.grown(self.follow, capacity, self.nodes)
        cdef uint32_t[::1] table
        cdef int64_t node
        while places < 2 * capacity:
            places *= 2
        table = zeros(places)
        self.parent = parent
        self.edge = edge
        self.follow = follow
        self.table = table
        for node in range(1, self.nodes):
            self.table[self.place(parent[node], edge[node])] = node
        return 0

    cdef inline Py_ssize_t place(self, uint32_t parent, token_t token) except -1:
        """Where the edge stands in the table, or the empty place where it belongs."""
        cdef uint32_t mask = self.table.shape[0] - 1
        cdef uint32_t index = mixed(parent, token) & mask
        cdef uint32_t node = self.table[index]
        while node != 0 and (self.parent[node] != parent or self.edge[node] != token):
            index = (index + 1) & mask
            node = self.table[index]
        return index

    cdef inline uint32_t child(self, uint32_t parent, token_t token) except? 0:
        """The node behind an edge, made if it is new."""
        cdef Py_ssize_t index = self.place(parent, token)
        cdef uint32_t node = self.table[index]
        if node == 0:
            node = <uint32_t> self.nodes
            self.parent[node] = parent
            self.edge[node] = token
            self.follow[node] = 0
            self.table[index] = node
            self.nodes += 1
        return node

    cdef int append(self, token_t token) except -1:
        """Append one token; room was reserved."""
        cdef int32_t n = self.max_n
        cdef uint32_t node
        self.tokens[self.size] = token
        self.size += 1
        if self.size < n:
            n = <int32_t> self.size
        while n > 0:  # long to short: a node is reached from the shorter one of a token ago
            node = self.child(self.path[n - 1], token)
            self.path[n] = node
            self.match[n] = self.follow[node]
            self.follow[node] = <uint32_t> self.size
            n -= 1
        return 0

    cdef int32_t copy_following(
        self, int32_t min_n, token_t[:, ::1] out, Py_ssize_t row, int32_t want
    ) except -1:
        """Copy what followed the longest match into `row` of `out`; returns how much."""
        cdef int32_t n = self.max_n
        cdef int32_t copied = 0
        cdef int64_t start
        while n > min_n and self.match[n] == 0:
            n -= 1
        start = self.match[n]
        if start == 0:
            return 0
        while copied < want and start + copied < self.size:
            out[row, copied] = self.tokens[start + copied]
            copied += 1
        return copied


@cython.final
cdef class NgramIndex:
    """Histories of tokens, and what followed the last tokens when they occurred before.

    Appending a token and proposing take a number of steps that grows with `max_n` and not
    with the history. Every method raises before it touches a history.

    Parameters
    ----------
    slots : int
        Number of histories, 1..65536.
    min_n : int, optional
        Fewest tokens that make a match, at least 1.
    max_n : int, optional
        Most tokens that are matched, min_n..64.

    Raises
    ------
    TypeError
        If a number is not an int (bool is not one).
    ValueError
        If a number is out of range.

    Notes
    -----
    *Thread safety*: not thread-safe; one engine thread owns an index.
    """

    cdef readonly int32_t slots
    """Number of histories."""
    cdef readonly int32_t min_n
    """Fewest tokens that make a match."""
    cdef readonly int32_t max_n
    """Most tokens that are matched."""
    cdef list _histories
    cdef int64_t[::1] _seen_in
    cdef int64_t _call

    def __cinit__(self, slots, min_n=2, max_n=4):
        self.slots = checked_int(slots, "slots", 1, MAX_SLOTS)
        self.max_n = checked_int(max_n, "max_n", 1, MAX_N)
        self.min_n = checked_int(min_n, "min_n", 1, self.max_n)
        self._histories = [None] * self.slots
        self._seen_in = array("q", (0,)) * self.slots

    cdef int32_t _slot_index(self, object slot) except -1:
        """`slot` as a valid index."""
        return self._slot_number(checked_int(slot, "slot", -MAX_NODES, MAX_NODES))

    cdef inline int32_t _slot_number(self, int64_t slot) except -1:
        """`slot`, if there is such a slot."""
        if slot < 0 or slot >= self.slots:
            raise IndexError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        return <int32_t> slot

    cdef _History _reserved(self, int32_t slot, int64_t more):
        """The history of `slot`, made if needed, with room for `more` tokens."""
        cdef _History history = self._histories[slot]
        if history is None:
            history = _History(self.max_n)
        history.reserve(more)
        self._histories[slot] = history
        return history

    def reset(self, slot) -> None:
        """Empty the history of a slot and free its memory.

        Parameters
        ----------
        slot : int
            Any slot.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int.
        """
        self._histories[self._slot_index(slot)] = None

    def extend(self, slot, const token_t[::1] tokens not None) -> None:
        """Append tokens to the history of a slot.

        Parameters
        ----------
        slot : int
            Any slot.
        tokens : uint32 array, (count,), contiguous
            Tokens in order; none is allowed.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int or `tokens` not an array.
        ValueError
            If the array's type is wrong or the history would be too long.
        """
        cdef int32_t index = self._slot_index(slot)
        cdef _History history
        cdef Py_ssize_t position
        if tokens.shape[0] == 0:
            return
        history = self._reserved(index, tokens.shape[0])
        for position in range(tokens.shape[0]):
            history.append(tokens[position])

    def extend_round(
        self,
        const int32_t[::1] slots not None,
        const int32_t[::1] counts not None,
        const token_t[:, ::1] tokens not None,
    ) -> None:
        """Append the tokens of one round to many histories.

        Parameters
        ----------
        slots : int32 array, (rows,)
            Slot of each row, each at most once.
        counts : int32 array, (at least rows,)
            Tokens to take of each row.
        tokens : uint32 array, (at least rows, at least the largest count), C-contiguous
            Row r holds the tokens of slot `slots[r]`.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If an argument is not an array.
        ValueError
            If a type, shape or count is wrong, or a slot is named twice.
        """
        cdef Py_ssize_t rows = slots.shape[0]
        cdef Py_ssize_t row, position
        cdef _History history
        if counts.shape[0] < rows or tokens.shape[0] < rows:
            raise ValueError(
                f"counts and tokens must have at least {rows} rows, got {counts.shape[0]} "
                f"and {tokens.shape[0]}"
            )
        self._call += 1
        for row in range(rows):
            self._slot_number(slots[row])
            if self._seen_in[slots[row]] == self._call:
                raise ValueError(f"slot {slots[row]} is named twice")
            self._seen_in[slots[row]] = self._call
            if not 0 <= counts[row] <= tokens.shape[1]:
                raise ValueError(
                    f"count of row {row} must be in 0..{tokens.shape[1]}, got {counts[row]}"
                )
        for row in range(rows):
            if counts[row] > 0:
                self._reserved(slots[row], counts[row])
        for row in range(rows):
            history = self._histories[slots[row]]
            for position in range(counts[row]):
                history.append(tokens[row, position])

    def propose(
        self,
        const int32_t[::1] slots not None,
        const int32_t[::1] want not None,
        token_t[:, ::1] out not None,
        int32_t[::1] counts_out not None,
    ) -> int:
        """Copy, for each row, what followed the last occurrence of its newest tokens.

        Matches of `max_n` tokens are tried first, then shorter ones down to `min_n`. The
        occurrence is the most recent one that ends before the history does; it may overlap
        the newest tokens. The copy stops at the end of the history.

        Parameters
        ----------
        slots : int32 array, (rows,)
            Slot of each row.
        want : int32 array, (at least rows,)
            Most tokens wanted for each row, 0..columns of `out`.
        out : uint32 array, (at least rows, columns), C-contiguous, written
            Row r gets the tokens proposed for slot `slots[r]`; the rest is left as it is.
        counts_out : int32 array, (at least rows,), written
            Tokens copied into each row, 0 where nothing matched.

        Returns
        -------
        int
            Tokens copied into all rows.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If an argument is not an array.
        ValueError
            If a type, shape or wanted number is wrong.
        """
        cdef Py_ssize_t rows = slots.shape[0]
        cdef int64_t total = 0
        cdef int32_t copied
        cdef Py_ssize_t row
        cdef _History history
        if want.shape[0] < rows or out.shape[0] < rows or counts_out.shape[0] < rows:
            raise ValueError(
                f"want, out and counts_out must have at least {rows} rows, got "
                f"{want.shape[0]}, {out.shape[0]} and {counts_out.shape[0]}"
            )
        for row in range(rows):
            self._slot_number(slots[row])
            if not 0 <= want[row] <= out.shape[1]:
                raise ValueError(
                    f"want of row {row} must be in 0..{out.shape[1]}, got {want[row]}"
                )
        for row in range(rows):
            history = self._histories[slots[row]]
            copied = 0
            if history is not None:
                copied = history.copy_following(self.min_n, out, row, want[row])
            counts_out[row] = copied
            total += copied
        return total

    def size(self, slot) -> int:
        """Tokens in the history of a slot.

        Parameters
        ----------
        slot : int
            Any slot.

        Returns
        -------
        int
            0 after `reset`.

        Raises
        ------
        IndexError
            If there is no such slot.
        TypeError
            If `slot` is not an int.
        """
        cdef _History history = self._histories[self._slot_index(slot)]
        return 0 if history is None else history.size

    @property
    def nbytes(self) -> int:
        """Bytes held for all histories."""
        cdef _History history
        cdef int64_t total = 0
        for history in self._histories:
            if history is not None:
                total += history.nbytes()
        return total

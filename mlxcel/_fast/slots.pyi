from collections.abc import Iterable
from typing import Any, Final, Protocol, SupportsIndex, TypeAlias, TypedDict, final, type_check_only

from typing_extensions import Buffer

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

FREE: Final[int]
RUNNING: Final[int]
FINISHED: Final[int]
DRAINING: Final[int]

FINISH_NONE: Final[int]
FINISH_STOP: Final[int]
FINISH_LENGTH: Final[int]

# NumPy's stubs declare the buffer protocol from Python 3.12 on only.
@type_check_only
class _NumpyArray(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_Array: TypeAlias = Buffer | _NumpyArray

@type_check_only
class SlotStats(TypedDict):
    state: int
    length: int
    budget: int
    emitted: int
    width: int
    in_flight: int
    ahead: int
    rounds: int
    width_min: int
    width_max: int
    proposed: list[int]
    accepted: list[int]

@final
class SlotTable:
    def __new__(
        cls,
        slots: SupportsIndex,
        max_width: SupportsIndex,
        max_stops: SupportsIndex = 32,
        rounds: SupportsIndex = 4,
    ) -> SlotTable: ...
    @property
    def slots(self) -> int: ...
    @property
    def max_width(self) -> int: ...
    @property
    def max_stops(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def admitted(self) -> int: ...
    @property
    def released(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def unsettled(self) -> int: ...
    @property
    def count(self) -> memoryview[int]: ...
    @property
    def accepted(self) -> memoryview[int]: ...
    @property
    def finish(self) -> memoryview[int]: ...
    def admit(
        self,
        length: SupportsIndex,
        budget: SupportsIndex,
        width: SupportsIndex,
        stops: Iterable[SupportsIndex],
    ) -> int: ...
    def set_width(self, slot: SupportsIndex, width: SupportsIndex) -> None: ...
    def release(self, slot: SupportsIndex) -> None: ...
    def plan_round(self, cap: SupportsIndex) -> int: ...
    def round_slots(self, round: SupportsIndex) -> memoryview[int]: ...
    def round_widths(self, round: SupportsIndex) -> memoryview[int]: ...
    def lengths(self, round: SupportsIndex) -> memoryview[int]: ...
    def upper_lengths(self, round: SupportsIndex) -> memoryview[int]: ...
    def narrow(self, round: SupportsIndex, widths: _Array) -> None: ...
    def settle(self, round: SupportsIndex, packed: _Array) -> int: ...
    def upper_length(self, slot: SupportsIndex) -> int: ...
    def stats(self, slot: SupportsIndex) -> SlotStats: ...

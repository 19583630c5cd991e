from typing import Final

__all__ = ["ABI3", "CHECKED", "CYTHON_VERSION", "FAST_MATH", "OPTIMIZED"]

OPTIMIZED: Final[bool]
FAST_MATH: Final[bool]
CHECKED: Final[bool]
ABI3: Final[bool]
CYTHON_VERSION: Final[str]

"""What the C compiler saw when the compiled modules were built; constants only.

A stray flag slows everything down or changes arithmetic without an error, so a test reads
these back. All compiled modules are built with the same flags. Immutable, hence safe to read
from any thread.
"""

cdef extern from *:
    """
    #ifdef __OPTIMIZE__
    #define MLXCEL_SAW_OPTIMIZE 1
    #else
    #define MLXCEL_SAW_OPTIMIZE 0
    #endif
    #ifdef __FAST_MATH__
    #define MLXCEL_SAW_FAST_MATH 1
    #else
    #define MLXCEL_SAW_FAST_MATH 0
    #endif
    #ifdef MLXCEL_CHECKED
    #define MLXCEL_SAW_CHECKED 1
    #else
    #define MLXCEL_SAW_CHECKED 0
    #endif
    #ifdef Py_LIMITED_API
    #define MLXCEL_SAW_ABI3 1
    #else
    #define MLXCEL_SAW_ABI3 0
    #endif
    """
    const int MLXCEL_SAW_OPTIMIZE
    const int MLXCEL_SAW_FAST_MATH
    const int MLXCEL_SAW_CHECKED
    const int MLXCEL_SAW_ABI3
    const unsigned long CYTHON_HEX_VERSION

__all__ = ["ABI3", "CHECKED", "CYTHON_VERSION", "FAST_MATH", "OPTIMIZED"]


cdef str version_of(unsigned long number):
    """Text of a version packed as CPython packs its own."""
    cdef str text = f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}"
    cdef str stage = {0xA: "a", 0xB: "b", 0xC: "rc"}.get(number >> 4 & 15, "")
    return f"{text}{stage}{number & 15}" if stage else text


OPTIMIZED = bool(MLXCEL_SAW_OPTIMIZE)
FAST_MATH = bool(MLXCEL_SAW_FAST_MATH)
CHECKED = bool(MLXCEL_SAW_CHECKED)
ABI3 = bool(MLXCEL_SAW_ABI3)
CYTHON_VERSION = version_of(CYTHON_HEX_VERSION)

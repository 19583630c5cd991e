# Shared by the compiled modules: the token type and the one way a Python integer is checked.
from cpython.bool cimport PyBool_Check
from cpython.number cimport PyIndex_Check
from libc.stdint cimport int64_t, uint32_t

ctypedef uint32_t token_t


cdef inline int64_t checked_int(object value, str name, int64_t low, int64_t high) except? -1:
    """`value` as a C integer in `low .. high`; bool is not an integer here."""
    if PyBool_Check(value) or not PyIndex_Check(value):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    number = value.__index__()
    if not low <= number <= high:
        raise ValueError(f"{name} must be in {low}..{high}, got {number}")
    return number

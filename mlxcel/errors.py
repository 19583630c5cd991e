"""The error tree of mlxcel.

Every error has a stable ``code`` (unique, checked when the class is made) and a
message that says what is wrong, where, with which value, and what to do. A
refusal to speculate is a result with a reason, never an error.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CapacityError",
    "ConfigError",
    "EngineError",
    "ExactnessError",
    "LoadError",
    "MlxcelError",
    "RequestError",
]


class MlxcelError(Exception):
    """Base of all errors raised on purpose by mlxcel.

    Parameters
    ----------
    message : str
        What is wrong, where, with which value, and what to do.
    param : str, optional
        Name of the offending field, when there is one.
    """

    code: ClassVar[str] = "mlxcel"
    _codes: ClassVar[dict[str, type]] = {}

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.code in MlxcelError._codes:
            raise TypeError(f"error code {cls.code!r} is already used")
        MlxcelError._codes[cls.code] = cls

    @staticmethod
    def of(code: str, message: str, param: str | None = None) -> MlxcelError:
        """Make the error that has a code; an unknown code gives the base class."""
        made = MlxcelError._codes.get(code, MlxcelError)(message, param=param)
        assert isinstance(made, MlxcelError)
        return made


class ConfigError(MlxcelError, ValueError):
    """A bad or contradictory setting."""

    code = "config"


class LoadError(MlxcelError):
    """A model, drafter or file that cannot be loaded."""

    code = "load"


class RequestError(MlxcelError, ValueError):
    """A request with an invalid parameter."""

    code = "request"


class CapacityError(MlxcelError):
    """No room for the request: queue full or no memory for the reservation."""

    code = "capacity"


class EngineError(MlxcelError):
    """The engine is closed, has failed, or cancelled the request."""

    code = "engine"


class ExactnessError(MlxcelError):
    """A divergence between the verify block and single steps."""

    code = "exactness"

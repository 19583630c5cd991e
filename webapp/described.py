"""What routes say about themselves for ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["Description", "describe", "description_of"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One route.

    Attributes
    ----------
    summary : str
        One sentence.
    request : type or None
        Model of the body.
    streams : bool
        Whether it may answer with server-sent events.
    media : str
        Type of the answer.
    """

    summary: str
    request: type[BaseModel] | None = None
    streams: bool = False
    media: str = "application/json"


def describe(
    summary: str,
    *,
    request: type[BaseModel] | None = None,
    streams: bool = False,
    media: str = "application/json",
) -> Callable[[F], F]:
    """Mark a view function with its description."""

    def mark(view: F) -> F:
        made = Description(summary=summary, request=request, streams=streams, media=media)
        view.__dict__["description"] = made
        return view

    return mark


def description_of(view: Any) -> Description | None:
    """The description of a view function; ``None`` where it has none."""
    found = getattr(view, "description", None)
    return found if isinstance(found, Description) else None

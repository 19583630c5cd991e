"""How many tokens per row a target pass of decode is fed, and what its shape depends on.

Pure. In *fast* numerics a pass is as wide as its widest block, except that the verify of a
single row is padded where the kernel profile found more rows cheaper. In *invariant*
numerics every pass of decode has one shape, classic steps included: the same number of
tokens per row, lengths on the device and masks as arrays, and attention over all positions
that the requests may ever reach. Whatever a kernel does by the shape of its arguments, it
then does alike in a classic step and in a verify of any width.

The number of rows is not constant: it is that of the requests decoding together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxcel.config import Settings
from mlxcel.errors import ConfigError

__all__ = ["Numerics", "PassShape", "RowRule", "rule_of", "widest"]

Numerics = Literal["fast", "invariant"]


@dataclass(frozen=True, slots=True)
class PassShape:
    """Shape of one pass.

    Attributes
    ----------
    tokens : int
        Per row, padding included.
    bound : int
        Upper bound of length + tokens over the rows.
    exact : int or None
        Length of the only row, where the pass may depend on it.
    """

    tokens: int
    bound: int
    exact: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """The rule for one target on one host; by default nothing is padded.

    Attributes
    ----------
    numerics : {"fast", "invariant"}
        See the module.
    block : int
        Tokens per row of every pass; only in invariant numerics, else 0.
    padding : mapping of int to int
        Tokens to verify a single row of a width with; only in fast numerics.
    """

    numerics: Numerics = "fast"
    block: int = 0
    padding: Mapping[int, int] = field(default_factory=dict)

    @property
    def invariant(self) -> bool:
        """Whether all passes have one shape."""
        return self.numerics == "invariant"

    def tokens(self, rows: int, width: int) -> int:
        """Tokens per row of a pass over ``rows`` rows, the widest block of which has ``width``.

        Raises
        ------
        ConfigError
            Invariant numerics cannot run a block that wide; requests are refused before.
        """
        if self.invariant:
            if width > self.block:
                raise ConfigError(
                    f"a block of {width} tokens is above the {self.block} of invariant numerics"
                )
            return self.block
        return width if rows > 1 else self.padding.get(width, width)

    def shape(
        self, rows: int, width: int, *, bound: int, exact: int | None, reserved: int
    ) -> PassShape:
        """Shape of a pass.

        Parameters
        ----------
        rows, width : int
            As for `tokens`.
        bound : int
            Upper bound of length + width over the rows.
        exact : int or None
            Length of the only row, where the host knows it.
        reserved : int
            Most tokens that one of the requests may come to, prompt and output.
        """
        tokens = self.tokens(rows, width)
        bound += tokens - width
        if not self.invariant:
            return PassShape(tokens, bound, exact)
        # One round is in flight when the next is planned, so a block may begin past the end
        # of a request by almost a block.
        return PassShape(tokens, max(bound, reserved + 2 * tokens), None)

    def key(self, width: int) -> str:
        """What is padded in a burst of a width, for keys; empty where nothing is."""
        fed = [(one, self.tokens(1, one)) for one in (1, width)]
        return ", ".join(f"{one} as {tokens}" for one, tokens in fed if one != tokens)


def rule_of(settings: Settings, padding: Mapping[int, int] | None = None) -> RowRule:
    """The rule that settings and a kernel profile make.

    Parameters
    ----------
    settings : Settings
        In invariant numerics the block is the default width, or the cheapest number of rows
        above it.
    padding : mapping of int to int, optional
        Cheapest number of rows by width (`mlxcel.decide.kernels.FormVerdict.padding`). A
        number above ``max_width`` is not used: caches have room for that many.
    """
    room = {w: n for w, n in (padding or {}).items() if w < n <= settings.max_width}
    if settings.numerics == "fast":
        return RowRule(padding=room)
    width = settings.default_width
    return RowRule(numerics="invariant", block=room.get(width, width))


def widest(settings: Settings) -> int:
    """Largest block width that a request may ask for.

    In invariant numerics it is the default width, for which all passes are made.
    """
    return settings.max_width if settings.numerics == "fast" else settings.default_width

"""How the tokens of one request are chosen: checked where it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from mlxcel.errors import RequestError

__all__ = ["SamplingParams", "integer", "number"]

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_SEED = 2**64 - 1


def number(name: str, value: object, low: float, high: float) -> float:
    """A finite number within bounds, else a `RequestError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value!r}", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, got {value}", param=name)
    return float(value)


def integer(name: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds, else a `RequestError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {value!r}", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, got {value}", param=name)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when they end.

    Attributes
    ----------
    max_tokens : int
        Tokens to produce at most, 0 or more.
    temperature : float
        0 is greedy; otherwise logits are divided by it.
    top_k : int
        Keep the k most likely tokens; 0 keeps all.
    top_p, min_p : float
        Nucleus mass and least probability relative to the best, after ``top_k``.
    repetition_penalty : float
        Divides positive and multiplies negative logits of tokens that occur in the
        prompt or the output (Keskar et al. 2019, section 4.1).
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of tokens in the output, once or per occurrence.
    logit_bias : mapping of int to float
        Added to the logits of these token ids, after the penalties.
    seed : int or None
        64-bit seed of the noise; ``None`` draws one, which the completion returns.
    stop : sequence of str
        Texts that end the output; they are not part of it.
    stop_token_ids : sequence of int
        Token ids that end the output, besides the model's own.
    ignore_eos : bool
        Go on past the model's own end tokens.
    logprobs : int or None
        ``None``: none; n: the chosen token's log-probability and the n best, 0 to 20.
        They are taken after penalties and bias, before temperature and filters.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        integer("max_tokens", self.max_tokens, 0, 2**31 - 1)
        number("temperature", self.temperature, 0.0, 100.0)
        integer("top_k", self.top_k, 0, 2**31 - 1)
        number("top_p", self.top_p, 0.0, 1.0)
        number("min_p", self.min_p, 0.0, 1.0)
        number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            integer("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            integer("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(
                f"ignore_eos must be true or false, got {self.ignore_eos!r}", param="ignore_eos"
            )
        self._check_bias()
        self._check_stops()

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
        bias = {
            integer("logit_bias key", token, 0, 2**32 - 1): number(
                f"logit_bias[{token}]", value, -1e9, 1e9
            )
            for token, value in self.logit_bias.items()
        }
        object.__setattr__(self, "logit_bias", MappingProxyType(bias))

    def _check_stops(self) -> None:
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, Iterable):
                raise RequestError(f"{name} must be a list, got {value!r}", param=name)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop holds non-empty texts, got {text!r}", param="stop")
        ids = tuple(self.stop_token_ids)
        for token in ids:
            integer("stop_token_ids", token, 0, 2**32 - 1)
        for name, values in (("stop", stop), ("stop_token_ids", ids)):
            if len(values) > MAX_STOPS:
                raise RequestError(
                    f"{name} holds at most {MAX_STOPS} entries, got {len(values)}", param=name
                )
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)

    @property
    def greedy(self) -> bool:
        """Whether no noise is used: temperature 0, or too small to matter in float32."""
        return self.temperature < 1e-5

    @property
    def penalised(self) -> bool:
        """Whether the history changes the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

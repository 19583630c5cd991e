"""Frozen records that cross package borders: requests in, completions out.

Values are checked where they are made, so code behind this line never sees a
bad one. Nothing here imports mlx.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from mlxcel.errors import RequestError

__all__ = [
    "Chunk",
    "Completion",
    "Decision",
    "FinishReason",
    "Request",
    "SamplingParams",
    "SpecStats",
    "Speculation",
    "TokenLogprob",
    "Usage",
]

FinishReason = Literal["stop", "length", "cancelled", "error"]
Speculation = Literal["auto", "on", "off"]

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_SEED = 2**64 - 1


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value!r}", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, got {value}", param=name)
    return float(value)


def _integer(name: str, value: object, low: int, high: int) -> int:
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
        _integer("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
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
            _integer("logit_bias key", token, 0, 2**32 - 1): _number(
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
            _integer("stop_token_ids", token, 0, 2**32 - 1)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued.

    Attributes
    ----------
    prompt_ids : tuple of int
        Token ids, at least one.
    params : SamplingParams
        How tokens are chosen.
    speculation : {"auto", "on", "off"}
        ``"on"`` fails if the engine cannot speculate; ``"auto"`` runs classic then.
    width : int or None
        Block width K (1 bonus + K-1 drafts); ``None`` takes the engine's default.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation = "auto"
    width: int | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if self.speculation not in ("auto", "on", "off"):
            raise RequestError(
                f"speculation must be auto, on or off, got {self.speculation!r}",
                param="speculation",
            )
        if self.width is not None:
            _integer("width", self.width, 1, 64)  # the engine knows its own, smaller bound


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural log) of one token and of the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; ``cached_tokens`` of the prompt came from a kept prefix."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a request speculates, and who said so.

    Attributes
    ----------
    run : bool
        Whether it does.
    width : int
        Block width it was given; 1 where it runs classic.
    kind : str
        The drafter's kind, ``"none"`` without one.
    source : str
        Who decided: ``"request"``, ``"engine"`` (nothing to speculate with), ``"exactness"``,
        ``"override"``, ``"policy"``, ``"gate"``, or ``"default"`` where no gate is asked.
    reason : str
        Why, for people.
    steered : bool
        Whether the width controller may choose other widths, round by round;
        `SpecStats.widths` has what ran.
    """

    run: bool
    width: int
    kind: str
    source: str
    reason: str
    steered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """What speculation did for one request, and why it ran or did not.

    Counts follow the field's terms: ``proposed`` and ``accepted`` are drafts,
    ``emitted_from_verify`` tokens that verify passes produced (the first token comes
    from the prompt pass), ``rounds`` verify passes, ``widths`` rounds by the block width
    that ran, ascending. Times are seconds.
    """

    kind: str
    ran: bool
    reason: str
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted_from_verify: int = 0
    proposed_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    width_requested: int = 1
    width_min: int = 0
    width_max: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def acceptance(self) -> float:
        """Accepted drafts over proposed drafts; 0 when none was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def width_mean(self) -> float:
        """Effective block width: mean over the rounds; 0 before the first."""
        total = sum(width * count for width, count in self.widths)
        return total / self.rounds if self.rounds else 0.0

    @property
    def emitted_per_verify(self) -> float:
        """Tokens per verify pass; 0 before the first."""
        return self.emitted_from_verify / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first over decode seconds."""
        return self.emitted_from_verify / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a running answer.

    ``text`` may be empty while a character or a stop text is incomplete. ``drafted``
    has one flag per token id: whether the drafter had proposed it. ``completion`` is
    set on the last chunk only.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    completion: Completion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished answer.

    ``token_ids`` include the stop token that ended the output; ``text`` does not.
    ``error`` is set when ``finish_reason`` is ``"error"``.
    """

    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    finish_reason: FinishReason
    usage: Usage
    seed: int
    decision: Decision
    speculation: SpecStats
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields, with the ratios of the statistics and the token total, for JSON."""
        fields = asdict(self)
        fields["usage"]["total_tokens"] = self.usage.total_tokens
        for name in ("acceptance", "width_mean", "emitted_per_verify", "tokens_per_second"):
            fields["speculation"][name] = getattr(self.speculation, name)
        return fields

"""Frozen records that cross package borders: requests in, completions out.

Values are checked where they are made, so code behind this line never sees a
bad one. Nothing here imports mlx.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mlxcel.errors import EngineError, MlxcelError, RequestError
from mlxcel.sampling_params import SamplingParams, integer, number

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

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]
Speculation = Literal["auto", "on", "off"]

MAX_PRIORITY = 2**31 - 1
MAX_TIMEOUT = 7 * 24 * 3600.0


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
    priority : int
        Lower is served earlier (as in vLLM); equals in order of arrival. A waiting request may
        push a running one of a higher number back into the queue.
    timeout : float or None
        Seconds from submission after which it ends with ``"timeout"``, wherever it stands;
        what it has produced by then is kept.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation = "auto"
    width: int | None = None
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if self.speculation not in ("auto", "on", "off"):
            raise RequestError(
                f"speculation must be auto, on or off, got {self.speculation!r}",
                param="speculation",
            )
        if self.width is not None:
            integer("width", self.width, 1, 64)  # the engine knows its own, smaller bound
        integer("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout is not None:
            number("timeout", self.timeout, 0.0, MAX_TIMEOUT)


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
    that ran, ascending. Times are seconds; a request that was preempted ``preemptions`` times
    has its time in the queue and its second prompt pass within ``decode_seconds``.
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
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0

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
    has one flag per token id: whether the drafter had proposed it, and ``pieces`` the part of the
    text that came with it; what is left when an answer ends outside of a token is in ``text``
    only. ``completion`` is set on the last chunk only.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    completion: Completion | None = None
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished answer.

    ``token_ids`` include the stop token that ended the output; ``text`` does not.
    ``error`` is set when ``finish_reason`` is ``"error"``, and ``error_code`` is then the code of
    its class in `mlxcel.errors`.
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
    error_code: str | None = None

    def failure(self) -> MlxcelError:
        """What ended it, to be raised; only where ``finish_reason`` is ``"error"``."""
        message = self.error or "the request failed"
        return MlxcelError.of(self.error_code or EngineError.code, message)

    def to_dict(self) -> dict[str, Any]:
        """All fields, with the ratios of the statistics and the token total, for JSON."""
        fields = asdict(self)
        fields["usage"]["total_tokens"] = self.usage.total_tokens
        for name in ("acceptance", "width_mean", "emitted_per_verify", "tokens_per_second"):
            fields["speculation"][name] = getattr(self.speculation, name)
        return fields

"""The arms of a benchmark: what runs a prompt once, classic or at a block width."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mlxcel.decide.raw_runs import Run
from mlxcel.errors import ConfigError

if TYPE_CHECKING:
    from mlxcel.llm import LLM
    from mlxcel.types import Completion

__all__ = ["LlmRunner", "Outcome", "Runner", "digest_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run gave; the counts are those of `mlxcel.decide.raw_runs.Run`.

    Attributes
    ----------
    token_ids : tuple of int
        The whole answer.
    """

    token_ids: tuple[int, ...]
    seconds: float
    rounds: int
    proposed: int = 0
    accepted: int = 0
    width_min: int = 1
    width_max: int = 1
    accepted_by_position: tuple[int, ...] = ()
    profiling: bool = False

    @property
    def speed(self) -> float:
        """Decoded tokens per second; the first comes from the prompt pass."""
        return (len(self.token_ids) - 1) / self.seconds

    def as_run(self, *, speculative: bool, started: float) -> Run:
        """The raw sample of a record; ``started`` in seconds since the campaign began."""
        return Run(
            arm="speculative" if speculative else "classic",
            tokens=len(self.token_ids) - 1,
            seconds=self.seconds,
            rounds=self.rounds,
            proposed=self.proposed,
            accepted=self.accepted,
            width_min=self.width_min,
            width_max=self.width_max,
            ids_sha256=digest_of(self.token_ids),
            started_s=round(started, 6),
            accepted_by_position=self.accepted_by_position,
            profiling=self.profiling,
        )


def digest_of(token_ids: Sequence[int]) -> str:
    """SHA-256 of token ids in decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


class Runner(Protocol):
    """Runs prompts; a real model, or a simulated host in tests."""

    def run(self, prompt: str, width: int | None, tokens: int) -> Outcome:
        """Decode so many tokens, classic where ``width`` is ``None``."""

    def margin(self, prompt: str, position: int) -> float | None:
        """Difference of the two best log-probabilities at a position of the classic answer."""


class LlmRunner:
    """Runs the arms on the public API, greedily and to the full budget.

    The end of the text is ignored, so that every run decodes the same number of tokens.

    Parameters
    ----------
    llm : LLM
        A loaded model and drafter; nobody else may use it meanwhile.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def run(self, prompt: str, width: int | None, tokens: int) -> Outcome:
        """Decode a prompt once; see `Runner`.

        Raises
        ------
        ConfigError
            Fewer than two tokens: the first one has no time.
        ExactnessError
            The exactness probe found that this width changes the output here.
        """
        if tokens < 2:
            raise ConfigError(f"a run needs at least 2 tokens, got {tokens}", param="tokens")
        speculation: Any = "off" if width is None else "on"
        done = self._generate(prompt, tokens, speculation=speculation, width=width)
        stats = done.speculation
        return Outcome(
            token_ids=done.token_ids,
            seconds=stats.decode_seconds,
            rounds=stats.rounds,
            proposed=stats.proposed,
            accepted=stats.accepted,
            width_min=stats.width_min,
            width_max=stats.width_max,
            accepted_by_position=stats.accepted_by_position,
            profiling=self._profiling(done),
        )

    def margin(self, prompt: str, position: int) -> float | None:
        """Difference of the two best log-probabilities; see `Runner`."""
        done = self._generate(prompt, position + 1, speculation="off", logprobs=2)
        found = done.logprobs or ()
        if len(found) <= position or len(found[position].top) < 2:
            return None
        best, second = sorted((value for _, value in found[position].top), reverse=True)[:2]
        return best - second

    def _generate(self, prompt: str, tokens: int, **options: Any) -> Completion:
        chat = [{"role": "user", "content": prompt}]
        asked: Any = chat if self._llm.has_chat_template else prompt
        return self._llm.generate(
            asked, max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True, **options
        )

    def _profiling(self, done: Completion) -> bool:
        """Whether the policy let it run and still measures; never where the request insists."""
        if done.decision.source != "policy":
            return False
        states = {entry["width"]: entry["state"] for entry in self._llm.mtp_policy()}
        return states.get(done.decision.width) == "profiling"

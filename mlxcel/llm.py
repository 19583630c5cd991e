"""The library's front door: load a model once, generate or stream from any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.facts import facts_of
from mlxcel.engine.prepare import build_engine, mtp_policy
from mlxcel.engine.worker import EngineThread
from mlxcel.front import (
    AUTO,
    Asked,
    Front,
    Prompt,
    Ticket,
    default_drafter,
    encode_prompt,
    parse_tool_call,
    token_texts,
)

__all__ = ["AUTO", "LLM", "Prompt", "default_drafter", "load"]

T = TypeVar("T")


def load(
    target: str | Path,
    drafter: str | Path | None = AUTO,
    *,
    config: Settings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LLM:
    """Load a model and its drafter.

    Parameters
    ----------
    target : str or Path
        A folder in mlx-lm or Hugging Face layout, a hub id, a GGUF file, or ``"demo"``.
    drafter : str, Path or None
        ``"lookup"`` for prompt lookup, ``"demo"`` for the MTP head that comes with the package,
        ``"mtp"`` for the head in the target's own checkpoint, ``"mtp:NAME"`` for the one in that
        of this folder or hub id, a folder made by ``mlxcel distill``, an assistant, or a draft
        model given like ``target``. ``None`` or ``"none"`` loads none. Left out (``"auto"``), the
        target ``"demo"`` gets its packaged head and any other target none.
    config : Settings, optional
        Limits, steps and the form of the weights; by default what the ``MLXCEL_*`` variables
        say (``Settings.from_env``).
    progress : callable, optional
        Called with a label, the amount done and the total.

    Returns
    -------
    LLM
        Ready to generate.

    Raises
    ------
    LoadError
        Names the file and what is wrong with it.
    ConfigError
        A variable has a bad value, or does not exist.
    """
    settings = config or Settings.from_env()
    chosen = default_drafter(target) if drafter == AUTO else drafter
    return LLM(lambda: build_engine(target, chosen, settings, progress))


class LLM(Front):
    """A loaded model. All methods may be called from any thread.

    Parameters
    ----------
    build : callable
        Makes the engine; it is called on the engine's own thread.
    """

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._thread = EngineThread(build)
        self._tokenizer = self._thread.call(lambda engine: engine.model.tokenizer)
        self._facts = self._thread.call(facts_of)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (mlx-lm's ``TokenizerWrapper``)."""
        return self._tokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """Names and abilities of the model; see `mlxcel.engine.facts.facts_of`."""
        return self._facts

    def close(self) -> None:
        """Stop the engine and free its memory; unfinished requests end with an error."""
        self._thread.close()

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function of the engine on the engine's thread; for tools and measuring."""
        return self._thread.call(function)

    def mtp_policy(self) -> list[dict[str, Any]]:
        """What the adaptive policy rests on, by block width; see `Front.mtp_policy`."""
        return self.call(mtp_policy)

    def metrics(self) -> dict[str, Any]:
        """Counters, histograms and the present state; see `Front.metrics`."""
        return self.call(Engine.snapshot)

    def load_widths(self) -> dict[str, Any]:
        """What rounds of several rows cost, and how wide they are for it.

        Returns
        -------
        dict
            Of JSON values but for the integer keys of ``holders`` (width held by number of
            rows, 1: classic decode), ``trials`` and ``excluded``; ``cells`` has rows, width,
            rounds, seconds and tokens per second. Row counts above 8 stand for a few. Empty
            before the first request that may speculate, without a drafter, and where
            ``mtp_block_controller`` is ``"requested"``.

        Raises
        ------
        EngineError
            The engine is closed.
        """

        def read(engine: Engine) -> dict[str, Any]:
            governor = engine.scheduler.governor
            crowd = None if governor is None else governor.crowd
            return {} if crowd is None else crowd.snapshot()

        return self.call(read)

    def encode(self, prompt: Prompt, *, tools: Sequence[Any] = ()) -> tuple[int, ...]:
        """Turn a prompt into token ids; see `Front.encode`."""
        return encode_prompt(self._tokenizer, prompt, tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(token_ids)))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each token by itself; see `Front.token_texts`."""
        return token_texts(self._tokenizer, token_ids)

    def parse_tool_call(self, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
        """Calls in a text of the model; see `Front.parse_tool_call`."""
        return parse_tool_call(self._tokenizer, text, tools)

    def _submit(self, asked: Asked) -> Ticket:
        return self._thread.submit(asked.request(self.encode(asked.prompt)))

    def _cancel(self, ticket: Ticket) -> None:
        self._thread.cancel(ticket)

"""One loaded demo model whose drafter can be changed, for the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import make_drafter
from mlxcel.llm import LLM
from mlxcel.runtime.loader import load_checkpoint
from mlxcel.types import Completion
from tests.support.drafters import make

SETTINGS = Settings()
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}


class Demo:
    """One loaded model, whose drafter can be changed between requests."""

    def __init__(self, folder: Path) -> None:
        def build() -> Engine:
            return Engine(load_checkpoint(folder, cache_dir=folder.parent), None, SETTINGS)

        self.llm = LLM(build)

    def drafter(self, name: str) -> None:
        """Put another drafter into the resting engine: ``"demo"`` is the packaged head."""

        def change(engine: Engine) -> None:
            assert not engine.scheduler.unfinished
            while engine.busy:  # a round in flight, of nobody any more
                engine.step()
            if name == "demo":
                engine.drafter = make_drafter(name, engine.model, SETTINGS)
            else:
                engine.drafter = make(name, engine.model, SETTINGS)

        self.llm.call(change)

    def classic(self, prompt: Any, **params: Any) -> Completion:
        return self.llm.generate(prompt, speculation="off", **params)

    def twin(self, prompt: Any, width: int, **params: Any) -> Completion:
        return self.llm.generate(prompt, speculation="on", width=width, **params)

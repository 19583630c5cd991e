"""The text on disk: written batch by batch, so that a run never samples the same twice."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.distill.options import Options
from mlxcel.distill.rows import RowPlan, evaluation_rows, training_rows
from mlxcel.distill.script import ANSWER, USER, ChatFormat
from mlxcel.distill.synthesis import Text, row_seeds, synthesise
from mlxcel.errors import ConfigError, LoadError
from mlxcel.models.target import Target

__all__ = ["Corpus", "draft_ranking"]

EVALUATION = 1 << 20  # its number among the batches
Tick = Callable[[str, int, int], None]


class Corpus:
    """Text of one distillation in a folder.

    Parameters
    ----------
    folder : Path
        Made if missing.
    target : Target
        Writes it.
    tokenizer : TokenizerWrapper
        The target's.
    options : Options
        Seed, length, prompts.
    fingerprint : str
        Of the target; text of another one is refused.
    """

    def __init__(
        self, folder: Path, target: Target, tokenizer: Any, options: Options, fingerprint: str
    ) -> None:
        self._folder, self._target, self._tokenizer = folder, target, tokenizer
        self._options = options
        self._ends = ChatFormat.of(tokenizer).ends
        self.seconds = 0.0  # of all text written or read, when it was written
        self._key = {
            "seed": options.seed, "length": options.length, "fingerprint": fingerprint,
            "turn_tokens": options.turn_tokens,
            "prompts": None if options.prompts is None else options.prompts.name,
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)

    def training(self, batches: int, rows: int, tick: Tick) -> Text:
        """Training text of some batches; written where it is not there yet."""
        parts = [self._batch(batch, rows, f"text {batch + 1}/{batches}", tick)
                 for batch in range(batches)]  # fmt: skip
        return Text(
            tokens=np.concatenate([p.tokens for p in parts]),
            kinds=np.concatenate([p.kinds for p in parts]),
            seeds=np.concatenate([p.seeds for p in parts]),
            temperatures=np.concatenate([p.temperatures for p in parts]),
        )

    def write_part(
        self, batches: int, rows: int, part: int, parts: int, tick: Tick
    ) -> None:
        """Write every ``parts``-th batch only, so that one process per GPU can share the work."""
        for batch in range(part, batches, parts):
            self._batch(batch, rows, f"text {batch + 1}/{batches}", tick)

    def _batch(self, batch: int, rows: int, label: str, tick: Tick) -> Text:
        path = self._folder / f"text-{batch:04d}-{rows}.npz"
        text = self._read(path)
        if text is None:
            plan = training_rows(
                self._tokenizer, self._options, batch=batch, rows=rows,
                vocab=self._target.vocab_size,
            )  # fmt: skip
            text = self._write(
                path, plan, batch, self._options.length, label, tick, self._options.turn_tokens
            )
        return text

    def evaluation(self, tick: Tick) -> tuple[Text, list[str]]:
        """Evaluation text and what each row is."""
        plan = evaluation_rows(self._tokenizer, self._options, vocab=self._target.vocab_size)
        first = int(plan.scripts.arrays()["first"].max())
        length = -(-(first + self._options.eval_tokens) // 64) * 64
        path = self._folder / f"evaluation-{len(plan.labels)}x{length}.npz"
        text = self._read(path)
        if text is None:
            text = self._write(path, plan, EVALUATION, length, "evaluation text", tick)
        return text, plan.labels

    def _write(
        self, path: Path, plan: RowPlan, batch: int, length: int, label: str, tick: Tick,
        turn_tokens: int | None = None,
    ) -> Text:  # fmt: skip
        began = time.monotonic()
        text = synthesise(
            self._target, plan.scripts, length=length,
            seeds=row_seeds(self._options.seed, batch, len(plan.labels)),
            temperatures=plan.temperatures, ends=self._ends, turn_tokens=turn_tokens,
            tick=lambda done, total: tick(label, done + 1, total),
        )  # fmt: skip
        mx.clear_cache()
        temporary = path.with_name(f"unfinished-{os.getpid()}.npz")
        np.savez(
            temporary, tokens=text.tokens, kinds=text.kinds, seeds=text.seeds,
            temperatures=text.temperatures, key=np.array(json.dumps(self._key)),
            seconds=np.array(time.monotonic() - began),
        )  # fmt: skip
        os.replace(temporary, path)
        self.seconds += time.monotonic() - began
        return text

    def _read(self, path: Path) -> Text | None:
        if not path.exists():
            return None
        try:
            with np.load(path) as arrays:
                names = ("tokens", "kinds", "seeds", "temperatures")
                key, seconds = json.loads(str(arrays["key"])), float(arrays["seconds"])
                text = Text(**{name: arrays[name] for name in names})
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise LoadError(f"{path}: cannot be read: {error}; delete it") from error
        for name, value in self._key.items():
            if key.get(name) != value:
                raise ConfigError(
                    f"{path}: written with {name} = {key.get(name)!r}, not {value!r}; give the "
                    "same options or another folder", param=name,
                )  # fmt: skip
        self.seconds += seconds
        return text


def draft_ranking(text: Text, vocab: int, ends: list[int]) -> npt.NDArray[np.uint32]:
    """All ids, those that end a turn first, then the most frequent in free text.

    Parameters
    ----------
    text : Text
        Training text.
    vocab : int
        Ids there are.
    ends : list of int
        Ids that end a turn.

    Returns
    -------
    uint32 array, (vocab,)
        Ties in the order of ids.
    """
    free = (text.kinds == USER) | (text.kinds == ANSWER)
    counts = np.bincount(text.tokens[free].astype(np.int64), minlength=vocab)
    counts[[end for end in ends if end < vocab]] += int(counts.sum()) + 1
    return np.argsort(-counts, kind="stable").astype(np.uint32)

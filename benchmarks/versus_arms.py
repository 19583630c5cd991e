"""The arms of `versus_mlx_lm`; imports MLX, so only after the choice of BLAS."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import stream_generate

from benchmarks.interleave import interleave, ratio
from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import load_model, make_drafter
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from mlxcel.types import Completion, Request, SamplingParams

Installed = Callable[[Path, list[int], int], tuple[list[int], float]]


def top2_margin(model: LoadedModel, ids: list[int]) -> float:
    """Difference of the two best logits after ``ids``."""
    logits = model.target.model(mx.array([ids]))[0, -1].astype(mx.float32)
    best = mx.sort(logits)[-2:]
    return float(best[1] - best[0])


def difference(model: LoadedModel, prompt: list[int], a: list[int], b: list[int]) -> str:
    """``equal``, or the first divergent position with its top-2 margin."""
    if a == b:
        return "equal"
    pairs = enumerate(zip(a, b, strict=False))
    at = next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
    margin = top2_margin(model, [*prompt, *a[:at]])
    return f"differ at {at} (top-2 margin {margin:.2e})"


class Arms:
    """The same prompt through every arm."""

    def __init__(self, args: argparse.Namespace, installed: Installed) -> None:
        settings = Settings.from_env(weights=args.weights, prefix_bytes=0)
        self.args, self.installed = args, installed
        self.model = load_model(args.model, settings)
        form = self.model.representation.form
        # The same weights in mlx-lm's own, unchanged modules.
        self.plain = load_checkpoint(
            args.model, cache_dir=settings.cache_dir, weights=form, lean=False
        )
        drafter = make_drafter(args.drafter, self.model, settings)
        self.engine = Engine(self.model, drafter, settings)
        self.outputs: dict[str, list[int]] = {}
        self.last: Completion | None = None

    def ours(self, name: str, prompt: list[int], speculation: str) -> float:
        """One request through our engine; decode seconds per token."""
        request = Request(
            prompt_ids=tuple(prompt),
            params=SamplingParams(max_tokens=self.args.tokens, ignore_eos=True),
            speculation=speculation,  # type: ignore[arg-type]
            width=self.args.width if speculation == "on" else None,
        )
        self.engine.add(request)
        completion = None
        while self.engine.busy:
            for chunk in self.engine.step():
                completion = chunk.completion or completion
        assert completion is not None
        self.outputs[name] = list(completion.token_ids)
        if speculation == "on":
            self.last = completion
        return completion.speculation.decode_seconds / (len(completion.token_ids) - 1)

    def theirs(self, prompt: list[int]) -> float:
        """mlx-lm's generator on the same weights and BLAS."""
        ids: list[int] = []
        began = 0.0
        tokenizer = self.plain.tokenizer
        ends, tokenizer.eos_token_ids = tokenizer.eos_token_ids, set()
        tokens = stream_generate(
            self.plain.target.model, tokenizer, prompt, max_tokens=self.args.tokens
        )
        for response in tokens:
            ids.append(int(response.token))
            began = began or time.perf_counter()
        seconds = time.perf_counter() - began
        tokenizer.eos_token_ids = ends
        self.outputs["mlx-lm"] = ids
        return seconds / (len(ids) - 1)

    def as_installed(self, prompt: list[int]) -> float:
        """mlx-lm as installed, in a process of its own."""
        path = self.model.checkpoint.path
        ids, seconds = self.installed(path, prompt, self.args.tokens)
        self.outputs["as installed"] = ids
        return seconds / max(len(ids) - 1, 1)


def compare(args: argparse.Namespace, prompts: dict[str, str], installed: Installed) -> Any:
    """Measure every prompt and print a table."""
    arms = Arms(args, installed)
    print(f"model {args.model}: {arms.model.representation.summary}")
    print(f"drafter {args.drafter}, width {args.width}, {args.tokens} tokens")
    rows, speedups = [], []
    for name, text in prompts.items():
        row = _measure(arms, name, text)
        rows.append(row)
        speedups.append(row["speculative / classic"])
    mean = math.exp(sum(math.log(value) for value in speedups) / len(speedups))
    print(f"geometric mean of speculative / classic: {mean:.2f}")
    return {"arguments": {k: str(v) for k, v in vars(args).items()}, "rows": rows}


def _measure(arms: Arms, name: str, text: str) -> dict[str, Any]:
    tokenizer = arms.model.tokenizer
    messages = [{"role": "user", "content": text}]
    prompt = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    names = ["classic", "speculative", "mlx-lm"]
    calls: list[Callable[[], float]] = [
        lambda: arms.ours("classic", prompt, "off"),
        lambda: arms.ours("speculative", prompt, "on"),
        lambda: arms.theirs(prompt),
    ]
    if not arms.args.skip_installed:
        names.append("as installed")
        calls.append(lambda: arms.as_installed(prompt))
    seconds = dict(zip(names, interleave(calls, arms.args.repeats), strict=True))
    print(f"\n{name}: {len(prompt)} prompt tokens")
    classic = arms.outputs["classic"]
    row: dict[str, Any] = {"prompt": name, "seconds_per_token": seconds}
    for arm in names:
        per_second = sorted(1 / s for s in seconds[arm])
        middle = per_second[len(per_second) // 2]
        same = difference(arms.model, prompt, classic, arms.outputs[arm])
        print(f"  {arm:14s} {middle:7.1f} tok/s   ids against classic: {same}")
    assert arms.last is not None
    stats = arms.last.speculation
    print(
        f"  acceptance {stats.acceptance:.3f}, {stats.emitted_per_verify:.2f} tokens per verify, "
        f"effective width {stats.width_min} to {stats.width_max}"
    )
    pairs = [("speculative", "classic")]
    pairs += [(a, b) for a in ("classic", "speculative") for b in names[2:]]
    for a, b in pairs:
        found = ratio(seconds[a], seconds[b])
        row[f"{a} / {b}"] = found.median
        print(f"  {a} / {b}: {found}")
    row["emitted_per_verify"] = stats.emitted_per_verify
    row["acceptance"] = stats.acceptance
    return row

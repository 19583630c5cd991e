"""Time to the first token of a prompt that begins like an earlier one, against a cold run.

``python -m benchmarks.prefix_reuse`` sends prompts of one shared part and a short part of their
own, classic, to two engines over one model: one keeps prefixes, the other keeps none. Arms take
turns, the order is turned round each time. Token ids must be equal.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.interleave import interleave, ratio
from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine
    from mlxcel.types import Completion

ARMS = ("resumed", "cold")


def make_engines(model: str, weights: str | None) -> dict[str, Engine]:
    """One model, an engine that keeps prefixes and one that keeps none; no drafter."""
    from mlxcel.config import Settings
    from mlxcel.engine.engine import Engine
    from mlxcel.engine.prepare import load_model

    settings = {
        "resumed": Settings.from_env(weights=weights),
        "cold": Settings.from_env(weights=weights, prefix_bytes=0),
    }
    loaded = load_model(model, settings["resumed"])
    return {arm: Engine(loaded, None, settings[arm]) for arm in ARMS}


def decode(engine: Engine, prompt: list[int], tokens: int) -> Completion:
    """One request through a resting engine."""
    from mlxcel.engine.alone import run_alone
    from mlxcel.types import Request, SamplingParams

    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return run_alone(engine, Request(prompt_ids=tuple(prompt), params=params))


def measure(
    engines: dict[str, Engine], text: list[int], shared: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Both arms of prompts that share their first tokens."""
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    prompts = [
        [*text[:shared], *(text[(number * 37 + at) % len(text)] for at in range(args.own))]
        for number in range(args.repeats + 1)
    ]
    answers: dict[str, list[tuple[int, ...]]] = {arm: [] for arm in ARMS}
    cached: list[int] = []

    def arm(name: str) -> float:
        done = decode(engines[name], prompts[len(answers[name])], args.tokens)
        answers[name].append(done.token_ids)
        if name == "resumed":
            cached.append(done.usage.cached_tokens)
        return done.speculation.prefill_seconds

    for engine in engines.values():
        engine.clear_prefixes()
    runs = interleave([lambda name=name: arm(name) for name in ARMS], args.repeats)  # type: ignore[misc]
    seconds = dict(zip(ARMS, runs, strict=True))
    assert answers["resumed"] == answers["cold"], "the two gave different tokens"
    assert min(cached[1:]) >= shared, "a prompt was not resumed: is MLXCEL_PREFIX_BYTES too small?"
    return {
        "shared": shared, "own": args.own, "seconds": seconds,
        "ratio": str(ratio(seconds["resumed"], seconds["cold"])),
    }  # fmt: skip


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--shared", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--own", type=int, default=24, help="tokens that differ, 1 or more")
    parser.add_argument("--tokens", type=int, default=8, help="of output, to be compared")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    choose()
    from mlxcel.assets import standard_prompts  # after the choice of BLAS

    engines = make_engines(args.model, args.weights)
    model = engines["cold"].model
    words = " ".join(standard_prompts().values())
    text = list(model.tokenizer.encode(words))
    while len(text) < max(args.shared):
        text += text
    print(f"{args.model}: {model.representation.summary}; {args.own} own tokens")
    print("shared tokens  first token, cold  resumed  cold / resumed, paired (low to high)")
    rows = []
    for shared in args.shared:
        row = measure(engines, text, shared, args)
        rows.append(row)
        middle = {arm: median(row["seconds"][arm]) for arm in ARMS}
        print(
            f"{shared:13d}  {middle['cold']:15.3f} s  {middle['resumed']:5.3f} s  {row['ratio']}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

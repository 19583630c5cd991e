"""What invariant numerics cost: classic and speculative decode in both numerics, interleaved.

``python -m benchmarks.invariant_price`` loads a model once and runs every prompt through four
engines in turn: classic fast, classic invariant, speculative fast, speculative invariant. Seconds
are decode seconds per token, from the first token to the last. Token ids of all arms are compared
with those of classic fast: equal, or the first divergent position with its top-2 margin; the
invariant arms must be equal to each other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.interleave import interleave, ratio
from mlxcel.decide.rows import Numerics
from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine
    from mlxcel.runtime.loader import LoadedModel
    from mlxcel.types import Completion, Speculation

NUMERICS: tuple[Numerics, Numerics] = ("fast", "invariant")
ARMS = [f"{kind} {numerics}" for kind in ("classic", "speculative") for numerics in NUMERICS]


def make_engines(args: argparse.Namespace) -> tuple[LoadedModel, dict[str, Engine], dict[str, int]]:
    """One model, an engine per numerics, and tokens per row of a classic step and a verify."""
    from mlxcel.config import Settings
    from mlxcel.engine.engine import Engine
    from mlxcel.engine.prepare import make_drafter
    from mlxcel.engine.served_form import pass_rule
    from mlxcel.runtime.loader import load_checkpoint

    settings = Settings.from_env(
        weights=args.weights, default_width=args.width, prefix_bytes=0
    )
    model = load_checkpoint(args.model, cache_dir=settings.cache_dir, weights=settings.weights)
    engines: dict[str, Engine] = {}
    fed: dict[str, int] = {}
    for numerics in NUMERICS:
        mine = replace(settings, numerics=numerics)
        rule = pass_rule(model, mine)
        drafter = make_drafter(args.drafter, model, mine)
        engines[numerics] = Engine(model, drafter, mine, rule=lambda rule=rule: rule)  # type: ignore[misc]
        fed[f"classic {numerics}"] = rule.tokens(1, 1)
        fed[f"speculative {numerics}"] = rule.tokens(1, args.width)
    return model, engines, fed


def measure(
    args: argparse.Namespace, model: LoadedModel, engines: dict[str, Engine], text: str
) -> dict[str, Any]:
    """All arms over one prompt."""
    from benchmarks.versus_arms import difference
    from mlxcel.engine.alone import run_alone
    from mlxcel.types import Request, SamplingParams

    messages = [{"role": "user", "content": text}]
    prompt = tuple(model.tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    params = SamplingParams(
        max_tokens=args.tokens, ignore_eos=True, temperature=args.temperature, seed=0
    )
    outputs: dict[str, Completion] = {}

    def run(arm: str) -> float:
        kind, numerics = arm.split()
        mode: Speculation = "off" if kind == "classic" else "on"
        width = None if kind == "classic" else args.width
        request = Request(prompt_ids=prompt, params=params, speculation=mode, width=width)
        done = outputs[arm] = run_alone(engines[numerics], request)
        return done.speculation.decode_seconds / (len(done.token_ids) - 1)

    calls: list[Callable[[], float]] = [lambda arm=arm: run(arm) for arm in ARMS]  # type: ignore[misc]
    seconds = dict(zip(ARMS, interleave(calls, args.repeats), strict=True))
    ids = {arm: list(done.token_ids) for arm, done in outputs.items()}
    assert ids[ARMS[1]] == ids[ARMS[3]], "the invariant arms gave different tokens"
    same = {arm: difference(model, list(prompt), ids[ARMS[0]], ids[arm]) for arm in ARMS}
    return {
        "seconds_per_token": seconds,
        "ids against classic fast": same,
        "emitted_per_verify": {arm: outputs[arm].speculation.emitted_per_verify for arm in ARMS},
        "price": {
            kind: ratio(seconds[f"{kind} fast"], seconds[f"{kind} invariant"])
            for kind in ("classic", "speculative")
        },
        "speedup": {
            n: ratio(seconds[f"speculative {n}"], seconds[f"classic {n}"]) for n in NUMERICS
        },
    }


def show(name: str, row: dict[str, Any]) -> None:
    """One prompt's lines."""
    print(f"\n{name}")
    for arm in ARMS:
        per_second = 1 / statistics.median(row["seconds_per_token"][arm])
        same = row["ids against classic fast"][arm]
        print(f"  {arm:22s} {per_second:7.1f} tok/s   ids against classic fast: {same}")
    for kind, found in row["price"].items():
        print(f"  price of invariant, {kind} (seconds over fast): {found}")
    for numerics, found in row["speedup"].items():
        emitted = row["emitted_per_verify"][f"speculative {numerics}"]
        print(f"  speculative / classic, {numerics}: {found}; {emitted:.2f} tokens per verify")


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--prompt", action="append", help="name of a standard prompt")
    parser.add_argument("--json", type=Path, help="write the samples here")
    args = parser.parse_args()
    choose()
    from mlxcel.assets import standard_prompts  # after the choice of BLAS

    began = time.perf_counter()
    model, engines, fed = make_engines(args)
    print(f"model {args.model}: {model.representation.summary}; drafter {args.drafter}")
    print(f"width {args.width}, {args.tokens} tokens x {args.repeats}, tokens per row: {fed}")
    texts = standard_prompts()
    names = args.prompt or list(texts)
    rows = {}
    for name in names:
        rows[name] = measure(args, model, engines, texts[name])
        show(name, rows[name])
    print()
    for kind in ("classic", "speculative"):
        logs = [math.log(row["price"][kind].median) for row in rows.values()]
        print(f"geometric mean of the price, {kind}: {math.exp(statistics.fmean(logs)):.2f}")
    print(f"load average {', '.join(f'{value:.1f}' for value in os.getloadavg())}")
    if args.json:
        record = {"arguments": {k: str(v) for k, v in vars(args).items()}, "tokens": fed,
                  "rows": rows, "wall_seconds": time.perf_counter() - began}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1, default=vars))


if __name__ == "__main__":
    main()

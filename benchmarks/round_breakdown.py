"""Where the time of a round goes on the demo pairing: draft, verify, accept hook, host.

``python -m benchmarks.round_breakdown`` decodes a standard prompt at every block width in two
ways, in turn: undisturbed, and in stages, with every stage evaluated before the next one begins.
The parts are measured by themselves, none is a remainder: `diff` holds their sum against the wall
time of the same staged rounds (it must add up within 2 %). Undisturbed rounds are pipelined, so
they may be faster than the sum, by what is computed while Python builds the next graph: `hidden`
is the sum against the undisturbed wall.

Both ways decode the same tokens in the same rounds. Per round the median over the repetitions
counts, then the mean over the rounds; the first two rounds and the narrower ones at the end of
the budget are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcel.errors import EngineError
from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from benchmarks.round_stages import Round
    from mlxcel.engine.engine import Engine
    from mlxcel.types import Request

FIRST = 2  # rounds at the beginning, with the end of the prefill in them
TOLERANCE = 2.0  # percent that the parts may miss the wall by
LAST = 3  # at the end: narrowed by the budget, and the one in flight


def steady(runs: Sequence[list[Round]], name: str) -> float:
    """Seconds of a part in a typical round: median over runs, then mean over rounds."""
    count = min(len(rounds) for rounds in runs)
    values = [
        statistics.median(rounds[at].get(name, 0.0) for rounds in runs)
        for at in range(FIRST, max(count - LAST, FIRST + 1))
    ]
    return statistics.fmean(values)


def measure(engine: Engine, request: Request, repeats: int) -> dict[str, Any]:
    """Decode a request in both ways, interleaved, and sum up its rounds."""
    from benchmarks.round_stages import PARTS, Stages, run

    stages = Stages(engine)
    runs: dict[str, list[list[Round]]] = {"whole": [], "staged": []}
    ids = set()
    for repeat in range(repeats + 1):
        for way in ("whole", "staged") if repeat % 2 == 0 else ("staged", "whole"):
            rounds, done = run(engine, request, stages if way == "staged" else None)
            ids.add(done.token_ids)
            if repeat:  # the first pair only warms up
                runs[way].append(rounds)
    assert len(ids) == 1, "the two ways gave different tokens"
    parts = {name: 1e3 * steady(runs["staged"], name) for name in PARTS}
    total = sum(parts.values())
    staged, whole = (1e3 * steady(runs[way], "wall") for way in ("staged", "whole"))
    return parts | {
        "sum": total,
        "staged": staged,
        "undisturbed": whole,
        "difference_percent": 100 * (total / staged - 1),
        "hidden_percent": 100 * (total / whole - 1),
        "rounds": done.speculation.rounds,
        "emitted_per_verify": done.speculation.emitted_per_verify,
        "acceptance": done.speculation.acceptance,
    }


def classic_step(engine: Engine, request: Request, repeats: int) -> float:
    """Milliseconds of an undisturbed classic step."""
    from benchmarks.round_stages import run

    runs = [run(engine, request, None)[0] for _ in range(repeats + 1)]
    return 1e3 * steady(runs[1:], "wall")


COLUMNS = ("draft", "verify", "absorb", "host", "sum", "staged")


def line(width: int, row: dict[str, Any], classic: float) -> str:
    """One line of the table."""
    figures = "".join(f"{row[name]:9.2f}" for name in COLUMNS)
    return (
        f"{width:5d}{figures}{row['difference_percent']:+8.1f}%{row['undisturbed']:13.2f}"
        f"{row['hidden_percent']:+8.1f}%{row['undisturbed'] / classic:8.2f}"
        f"{row['emitted_per_verify']:9.2f}"
    )


def main() -> None:
    """Parse arguments and measure; a pairing that is not exact here is one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--prompt", default="code", help="name of a standard prompt")
    parser.add_argument("--widths", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--probe-off", action="store_true",
                        help="measure widths that the exactness probe declines too")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    try:
        breakdown(args)
    except EngineError as error:
        hint = "--probe-off measures what the exactness probe declines"
        parser.exit(1, f"round_breakdown: {error.message}; {hint}\n")


def breakdown(args: argparse.Namespace) -> None:
    """Measure what the arguments say, print a table, and write the figures if asked to."""
    choose()
    from mlxcel.assets import standard_prompts  # after the choice of BLAS
    from mlxcel.config import Settings
    from mlxcel.engine.prepare import build_engine
    from mlxcel.types import Request, SamplingParams

    began = time.perf_counter()
    settings = Settings.from_env(weights=args.weights, prefix_bytes=0)
    if args.probe_off:
        settings = replace(settings, mtp_exactness="off")
    engine = build_engine(args.model, args.drafter, settings)
    messages = [{"role": "user", "content": standard_prompts()[args.prompt]}]
    prompt = engine.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)

    def request(width: int | None) -> Request:
        speculation: Any = "off" if width is None else "on"
        return Request(
            prompt_ids=tuple(prompt), params=params, speculation=speculation, width=width
        )

    print(f"model {args.model}: {engine.model.representation.summary}")
    print(f"drafter {args.drafter}, prompt {args.prompt}, {args.tokens} tokens x {args.repeats}")
    steps = [classic_step(engine, request(None), args.repeats)]
    rows = {width: measure(engine, request(width), args.repeats) for width in args.widths}
    steps.append(classic_step(engine, request(None), args.repeats))
    classic = statistics.fmean(steps)
    print(f"classic step {classic:.2f} ms ({steps[0]:.2f} before, {steps[1]:.2f} after)")
    print("milliseconds of a round; steps: the undisturbed round in classic steps")
    head = "".join(f"{name:>9}" for name in COLUMNS)
    print(f"width{head}{'diff':>9}{'undisturbed':>13}{'hidden':>9}{'steps':>8}{'emitted':>9}")
    for width, row in rows.items():
        print(line(width, row, classic))
    worst = max(abs(row["difference_percent"]) for row in rows.values())
    print(f"the parts add up within {worst:.1f} %{'' if worst <= TOLERANCE else ': TOO FAR'}")
    if args.json:
        record = {"arguments": {k: str(v) for k, v in vars(args).items()},
                  "classic_step_ms": steps, "widths": rows,
                  "wall_seconds": time.perf_counter() - began}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

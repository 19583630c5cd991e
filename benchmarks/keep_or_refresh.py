"""Are the entries of accepted drafts computed again from the target's hidden states, or kept?

``python -m benchmarks.keep_or_refresh`` decodes the three standard prompts and some held-out
ones with the MTP head of the demo pairing, refreshed and kept in turn, and compares acceptance
by position, tokens per verify and time per round. The token ids are checked against each other.
``docs/decisions/0006-refresh.md`` has what was found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from mlxcel.engine.drafters import Drafter
    from mlxcel.engine.engine import Engine
    from mlxcel.types import Completion, Request

ARMS = ("refresh", "keep")
Runs = dict[str, list[list["Completion"]]]
"""By arm, and then by prompt: its repetitions."""


def drafters(engine: Engine) -> dict[str, Drafter]:
    """Both drafters, over one head."""
    from mlxcel.assets import DEMO_DRAFTER
    from mlxcel.engine.drafters import MtpDrafter
    from mlxcel.models.drafters.mtp import load_mtp
    from mlxcel.models.lean import lean_modules
    from mlxcel.runtime.mtp import MtpChain
    from mlxcel.runtime.representation import detect_backend

    head = load_mtp(DEMO_DRAFTER, engine.model.target)
    settings = engine.settings
    if settings.lean_modules and detect_backend() == "cpu":
        lean_modules(head)
    sizes = {"slack": settings.max_width, "length_step": settings.length_step}
    return {arm: MtpDrafter(MtpChain(head, refresh=arm == "refresh", **sizes)) for arm in ARMS}


def decode(engine: Engine, drafter: Drafter, request: Request) -> Completion:
    """One request through a resting engine."""
    from mlxcel.engine.alone import run_alone

    engine.drafter = drafter
    return run_alone(engine, request)


def measure(
    engine: Engine, both: dict[str, Drafter], requests: dict[str, Request], repeats: int
) -> Runs:
    """Decode every prompt with both, in turn; ids must agree."""
    first = next(iter(requests.values()))
    for arm in ARMS:
        decode(engine, both[arm], first)
    runs: Runs = {arm: [[] for _ in requests] for arm in ARMS}
    for repeat in range(repeats):
        for at, (name, request) in enumerate(requests.items()):
            order = ARMS if (repeat + at) % 2 == 0 else ARMS[::-1]
            for arm in order:
                runs[arm][at].append(decode(engine, both[arm], request))
            ids = {done.token_ids for arm in ARMS for done in runs[arm][at]}
            assert len(ids) == 1, f"{name}: the two gave different tokens"
    return runs


def _columns(rows: Sequence[Sequence[int]]) -> list[int]:
    """Sums by position; a short answer may have used fewer of them."""
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def figures(prompts: list[list[Completion]]) -> dict[str, Any]:
    """Pooled over prompts; times are medians over the repetitions of each."""
    stats = [runs[0].speculation for runs in prompts]
    rounds = sum(s.rounds for s in stats)
    seconds = sum(statistics.median(c.speculation.decode_seconds for c in runs) for runs in prompts)
    proposed = _columns([s.proposed_by_position for s in stats])
    accepted = _columns([s.accepted_by_position for s in stats])
    places = len([count for count in proposed if count])
    emitted = sum(s.emitted_from_verify for s in stats)
    return {
        "rounds": rounds,
        "acceptance": sum(accepted) / max(sum(proposed), 1),
        # Of the rounds in which every draft before was accepted.
        "by_position": [
            accepted[at] / max(accepted[at - 1] if at else proposed[at], 1) for at in range(places)
        ],
        "emitted_per_verify": emitted / rounds,
        "ms_per_round": 1e3 * seconds / rounds,
        "tokens_per_second": emitted / seconds,
    }


def show(title: str, row: dict[str, dict[str, Any]]) -> None:
    """Two lines, one for each arm."""
    for arm in ARMS:
        r = row[arm]
        places = " ".join(f"{value:.3f}" for value in r["by_position"])
        print(
            f"{title:22s} {arm:8s}{r['rounds']:6d}{r['acceptance']:11.3f}"
            f"{r['emitted_per_verify']:9.3f}{r['ms_per_round']:10.2f}"
            f"{r['tokens_per_second']:8.1f}   {places}"
        )


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[4])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--held-out", type=int, default=8, help="held-out prompts")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    choose()
    from mlxcel.assets import standard_prompts  # after the choice of BLAS
    from mlxcel.config import Settings
    from mlxcel.distill.seeds import HELD_OUT
    from mlxcel.engine.prepare import build_engine
    from mlxcel.types import Request, SamplingParams

    engine = build_engine("demo", "demo", Settings.from_env(prefix_bytes=0))
    both = drafters(engine)
    held_out = HELD_OUT[: args.held_out]
    texts = standard_prompts() | {f"held-out {n}": text for n, text in enumerate(held_out)}
    params = SamplingParams(max_tokens=args.tokens, temperature=args.temperature, seed=1)
    record: dict[str, Any] = {"arguments": {k: str(v) for k, v in vars(args).items()}}
    began = time.perf_counter()
    print(f"demo: {engine.model.representation.summary}; {args.tokens} tokens")
    print(f"{'':31s}rounds acceptance  emitted  ms/round   tok/s   accepted at place 1, 2, ...")
    for width in args.widths:
        requests = {}
        for name, text in texts.items():
            messages = [{"role": "user", "content": text}]
            ids = engine.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            requests[name] = Request(
                prompt_ids=tuple(ids), params=params, speculation="on", width=width
            )
        runs = measure(engine, both, requests, args.repeats)
        table = {name: {arm: figures([runs[arm][at]]) for arm in ARMS}
                 for at, name in enumerate(requests)}  # fmt: skip
        groups = {"held-out": slice(len(standard_prompts()), None), "all": slice(None)}
        for group, part in groups.items():
            table[f"{group} together"] = {arm: figures(runs[arm][part]) for arm in ARMS}
        record[str(width)] = table
        print(f"width {width}")
        for name, row in table.items():
            show(name, row)
        ratios = [table[name]["keep"]["ms_per_round"] / table[name]["refresh"]["ms_per_round"]
                  for name in requests]  # fmt: skip
        middle = record[f"{width} time ratio"] = statistics.median(ratios)
        print(f"time of a round, kept to refreshed, median of the prompts: {middle:.3f}")
    record["wall_seconds"] = time.perf_counter() - began
    if args.json:
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

"""The policy's predicted speed-up against the measured one, per standard prompt.

``python -m benchmarks.estimator``: for each prompt a policy that knows nothing profiles the demo
pairing; between its bursts the same prompt runs classic and speculative, undisturbed. The
prediction must come within 10 % of the ratio of those two.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from mlxcel.hardware.blas import choose


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=4, help="bursts, at least 4 settle it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    choose()
    from mlxcel.assets import standard_prompts
    from mlxcel.config import Settings

    settings = Settings.from_env(prefix_bytes=0)
    rows = []
    print("prompt        predicted  measured  difference  tokens per verify  round cost")
    for name, text in standard_prompts().items():
        row = measure(name, text, args, settings)
        rows.append(row)
        print(
            f"{name:12s}  {row['predicted']:9.2f}  {row['measured']:8.2f}  "
            f"{row['difference']:+9.1%}  {row['emitted_per_verify']:17.2f}  "
            f"{row['round_cost']:10.2f}", flush=True,
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def measure(name: str, text: str, args: argparse.Namespace, settings: Any) -> dict[str, Any]:
    """One prompt: profile, with undisturbed runs in between."""
    from mlxcel.engine.prepare import build_engine
    from mlxcel.engine.verdict_store import VerdictStore

    engine = build_engine("demo", "demo", settings)
    governor = engine.scheduler.governor
    assert governor is not None
    with tempfile.TemporaryDirectory() as folder:
        governor._store = VerdictStore(Path(folder))
        prompt = engine.model.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        seconds: dict[str, list[float]] = {"off": [], "on": []}
        run(engine, prompt, args.tokens, "on")  # warm
        for _ in range(args.repeats):
            run(engine, prompt, args.tokens, "auto")
            for arm, times in seconds.items():
                times.append(run(engine, prompt, args.tokens, arm))
        verdict = governor.policy(settings.default_width).verdict
    if verdict is None or verdict.estimate is None:
        raise SystemExit(f"{name}: the policy has not settled; raise --repeats")
    measured = median(seconds["off"]) / median(seconds["on"])
    found = verdict.estimate
    return {
        "prompt": name, "predicted": found.speedup, "measured": measured,
        "difference": found.speedup / measured - 1, "seconds": seconds,
        "emitted_per_verify": found.emitted_per_verify, "round_cost": found.round_cost,
    }  # fmt: skip


def run(engine: Any, prompt: list[int], tokens: int, speculation: Any) -> float:
    """One request; decode seconds."""
    from mlxcel.engine.alone import run_alone
    from mlxcel.types import Request, SamplingParams

    request = Request(
        prompt_ids=tuple(prompt),
        params=SamplingParams(max_tokens=tokens, ignore_eos=True),
        speculation=speculation,
        # A named width is not the controller's: the arm of comparison keeps to it.
        width=engine.settings.default_width if speculation == "on" else None,
    )
    return float(run_alone(engine, request).speculation.decode_seconds)


if __name__ == "__main__":
    main()

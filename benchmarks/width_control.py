"""The width controller against the best fixed width, per standard prompt.

``python -m benchmarks.width_control`` decodes each standard prompt with the demo pairing at every
fixed width and, as often, with a controller that starts at the default width and knows nothing but
what its own requests of this prompt have shown. Arms take turns, the order is turned round each
time. Token ids must be equal. ``docs/decisions/0008-width-controller.md`` has what was found.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine
    from mlxcel.types import Completion

STEERED = 0
"""The arm without a fixed width."""


def decode(engine: Engine, prompt: list[int], tokens: int, width: int) -> Completion:
    """One request through a resting engine."""
    from mlxcel.engine.alone import run_alone
    from mlxcel.types import Request, SamplingParams

    request = Request(
        prompt_ids=tuple(prompt),
        params=SamplingParams(max_tokens=tokens, ignore_eos=True),
        speculation="on",
        width=width or None,
    )
    return run_alone(engine, request)


def forget(engine: Engine, folder: Path) -> None:
    """A new governor, so that the controller knows nothing; exactness stays known."""
    from mlxcel.engine.governor import Governor
    from mlxcel.engine.served_form import pass_rule
    from mlxcel.engine.verdict_store import VerdictStore

    assert engine.drafter is not None
    rule = functools.partial(pass_rule, engine.model, engine.settings)
    governor = Governor.of(engine.model, engine.drafter, engine.settings, rule)
    governor._store = VerdictStore(folder)
    engine.scheduler.governor = governor


def measure(engine: Engine, prompt: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """All arms of one prompt, in turn."""
    arms = [STEERED, *args.widths]
    seconds: dict[int, list[float]] = {arm: [] for arm in arms}
    wanted, path = None, []
    with tempfile.TemporaryDirectory() as folder:
        forget(engine, Path(folder))
        for width in args.widths:  # exactness, kernels
            decode(engine, prompt, 3 * width, width)
        for repeat in range(args.requests):
            for arm in arms if repeat % 2 == 0 else arms[::-1]:
                done = decode(engine, prompt, args.tokens, arm)
                wanted = wanted or done.token_ids
                assert done.token_ids == wanted, f"width {arm} gave other tokens"
                seconds[arm].append(done.speculation.decode_seconds)
                if arm == STEERED:
                    path.append(done.speculation)
        assert engine.scheduler.governor is not None
        state = engine.scheduler.governor.snapshot()[0]["controller"]
    rates = {arm: (args.tokens - 1) / median(times) for arm, times in seconds.items()}
    best = max(args.widths, key=lambda width: rates[width])
    ratios = [b / a for a, b in zip(seconds[STEERED], seconds[best], strict=True)]
    half = len(ratios) // 2
    return {
        "rates": rates, "best": best, "seconds": seconds, "held": state["width"],
        "excluded": state["excluded"], "lost_share": state["lost_share"],
        "widths": [dict(stats.widths) for stats in path],
        "mean_widths": [stats.width_mean for stats in path],
        "first_half": median(ratios[:half]), "second_half": median(ratios[half:]),
        "all": sum(seconds[best]) / sum(seconds[STEERED]),
    }  # fmt: skip


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="folder, hub id or GGUF of the demo model")
    parser.add_argument("--widths", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=8, help="of each arm, at least 2")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    choose()
    from mlxcel.assets import standard_prompts  # after the choice of BLAS
    from mlxcel.config import Settings
    from mlxcel.engine.prepare import build_engine

    settings = Settings.from_env(mtp_block_controller="throughput", prefix_bytes=0)
    engine = build_engine(args.model, "demo", settings)
    print(f"{args.model}: {engine.model.representation.summary}; {args.tokens} tokens, "
          f"{args.requests} requests of each arm, start at {settings.default_width}")  # fmt: skip
    widths = "".join(f"{width:7d}" for width in args.widths)
    print(f"tok/s at width{widths}  steered  best  held   mean width, first and last request   "
          "steered / best fixed: first half, second half, all")  # fmt: skip
    rows = {}
    for name, text in standard_prompts().items():
        messages = [{"role": "user", "content": text}]
        prompt = engine.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        row = rows[name] = measure(engine, list(prompt), args)
        fixed = "".join(f"{row['rates'][width]:7.1f}" for width in args.widths)
        print(
            f"{name:14s}{fixed}{row['rates'][STEERED]:9.1f}{row['best']:6d}{row['held']:6d}"
            f"   {row['mean_widths'][0]:.1f} {row['mean_widths'][-1]:.1f}   "
            f"{row['first_half']:.3f} {row['second_half']:.3f} {row['all']:.3f}", flush=True,
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

"""Our decode against ``mlx_lm.generate``, interleaved, with equal token ids checked.

``python -m benchmarks.versus_mlx_lm`` compares in this process, on this process's BLAS:

    classic        our classic decode, dense float32 (or as ``--weights`` says)
    speculative    ours with a drafter
    mlx-lm         ``mlx_lm.stream_generate`` on the same weights

and, in a process of its own per repetition, ``mlx_lm`` as it is installed (its BLAS, the
stored weights). Seconds are decode seconds, from the first token to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from mlxcel.hardware.blas import choose

COPY_PROMPT = (
    "Repeat the following text exactly, three times.\n\n"
    "The harbour office opens at seven. Boats longer than twelve metres call on channel nine "
    "before they enter. The fuel berth is on the north side, water and power on the south side. "
    "Visitors pay at the kiosk by the gate and hang the ticket where it can be seen."
)

AS_INSTALLED = """
import json, sys, time
import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import stream_generate
model, tokenizer = load(sys.argv[1])
tokenizer.eos_token_ids = set()
prompt, tokens = json.loads(sys.argv[2]), int(sys.argv[3])
ids, began = [], None
for response in stream_generate(model, tokenizer, prompt, max_tokens=tokens):
    ids.append(int(response.token))
    began = began or time.perf_counter()
print(json.dumps({"seconds": time.perf_counter() - began, "ids": ids}))
"""


def installed(folder: Path, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Run mlx-lm as installed: a fresh process that knows nothing of ours."""
    words = [sys.executable, "-c", AS_INSTALLED, str(folder), json.dumps(prompt), str(tokens)]
    out = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
    found = json.loads(out.stdout.strip().splitlines()[-1])
    return found["ids"], found["seconds"]


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="lookup")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--prompt", action="append", help="a prompt; may be repeated")
    parser.add_argument("--standard", action="store_true", help="the three standard prompts")
    parser.add_argument("--skip-installed", action="store_true")
    parser.add_argument("--json", type=Path, help="write the samples here")
    args = parser.parse_args()
    choose()
    from benchmarks.versus_arms import compare  # after the choice of BLAS

    prompts = {f"prompt {n}": text for n, text in enumerate(args.prompt or [])}
    if args.standard:
        from mlxcel.assets import standard_prompts

        prompts |= standard_prompts()
    began = time.perf_counter()
    record = compare(args, prompts or {"copy": COPY_PROMPT}, installed)
    record["wall_seconds"] = time.perf_counter() - began
    if args.json:
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

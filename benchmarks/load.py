"""Many streams at once: our engine against mlx-lm's batch generator, closed and open loop.

``python -m benchmarks.load`` sends the same requests, prompts of mixed lengths, through

    off        our engine without speculation
    auto       our engine, speculating where it decides to
    mlx_lm     ``mlx_lm.generate.BatchGenerator`` on the same weights and BLAS, token by token
    process    as auto, through ``mlxcel.EngineClient`` (``--socket``)

for every number of streams, interleaved in one process, the order turned round each time. In the
closed loop each stream sends its next request when its last one has ended; with ``--rate`` requests
arrive by themselves (Poisson). ``benchmarks.load_figures`` says what the columns are; ``cpu/tok``
is processor time of this process per token, prompts included, which other work on the machine
disturbs least. Token ids of all arms are compared with those of ``off``. ``--long 6000`` measures
something else: what running streams notice of a long prompt, see `benchmarks.load_long`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.interleave import interleave, ratio
from mlxcel.hardware.blas import choose

if TYPE_CHECKING:
    from benchmarks.load_clients import Load
    from benchmarks.load_figures import Trace
    from mlxcel.llm import LLM
    from mlxcel.runtime.loader import LoadedModel

ARMS = ("off", "auto", "mlx_lm")
COLUMNS = (
    ("steady", "steady", 1.0), ("whole", "whole", 1.0),
    ("ttft_p50", "ttft 50", 1e3), ("ttft_p95", "95", 1e3),
    ("chunk_p50", "chunk 50", 1e3), ("chunk_p95", "95", 1e3),
    ("token_p50", "token 50", 1e3), ("token_p95", "95", 1e3),
    ("cpu", "cpu/tok", 1e3), ("width", "width", 1.0), ("acceptance", "accept", 1.0),
)  # fmt: skip


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=[*ARMS, "process"])
    parser.add_argument("--socket", help="of the engine process, for the arm `process`")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=2, help="of each stream")
    parser.add_argument("--rate", type=float, help="requests per second: an open loop")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--shortest", type=int, default=16, help="prompt, in tokens")
    parser.add_argument("--longest", type=int, default=400, help="prompt, in tokens")
    parser.add_argument("--long", type=int, help="tokens of a prompt that joins running streams")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the samples here")
    args = parser.parse_args()
    if "process" in args.arms and not args.socket:
        parser.error("the arm `process` needs --socket")
    if args.rate is not None and args.rate <= 0:
        parser.error(f"--rate must be above 0 requests per second, got {args.rate}")
    return args


def make_arms(
    args: argparse.Namespace, llm: LLM
) -> tuple[dict[str, Callable[[Load], list[Trace]]], LoadedModel | None]:
    """What runs a load, by name; and mlx-lm's copy of the model, if it is there."""
    from benchmarks.load_arms import MlxLm, ours
    from mlxcel.config import Settings

    arms: dict[str, Callable[[Load], list[Trace]]] = {}
    plain: LoadedModel | None = None
    for name in args.arms:
        if name == "mlx_lm":
            form = llm.call(lambda engine: engine.model.representation.form)
            theirs = MlxLm(args.model, form, Settings.from_env())
            arms[name], plain = theirs, theirs.model
        elif name == "process":
            client = importlib.import_module("mlxcel").EngineClient(args.socket)
            arms[name] = ours(client, "auto")
        else:
            arms[name] = ours(llm, name)
    return arms, plain


def same_ids(
    plain: LoadedModel | None, load: Load, wanted: Sequence[Trace], found: Sequence[Trace]
) -> str:
    """``all equal``, or how many answers differ and where the first one does."""
    ids = {trace.number: trace.ids for trace in wanted}
    wrong = sorted((t.number, t.ids) for t in found if t.ids != ids[t.number])
    if not wrong:
        return "all equal"
    number, theirs = wrong[0]
    if plain is None:
        where = "load the arm mlx_lm for the margin"
    else:
        from benchmarks.versus_arms import difference

        where = difference(plain, load.prompts[number], ids[number], theirs)
    return f"{len(wrong)} of {len(found)} differ; request {number}: {where}"


def measure(args: argparse.Namespace, llm: LLM, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Every arm at every number of streams; one row each."""
    from benchmarks.load_clients import Load
    from benchmarks.load_figures import figures
    from benchmarks.load_prompts import mixed_prompts

    arms, plain = make_arms(args, llm)
    loads = {}
    for streams in args.streams:
        prompts = mixed_prompts(
            llm.tokenizer, texts, streams * args.requests,
            seed=args.seed, shortest=args.shortest, longest=args.longest,
        )  # fmt: skip
        loads[streams] = Load(prompts, args.tokens, streams, args.rate, args.seed)
    keys = [(streams, arm) for streams in args.streams for arm in arms]
    traces: dict[tuple[int, str], list[Trace]] = {}
    samples: dict[tuple[int, str], list[dict[str, Any]]] = {key: [] for key in keys}

    def run(streams: int, arm: str) -> float:
        before = time.process_time()
        traces[streams, arm] = arms[arm](loads[streams])
        spent = time.process_time() - before
        found = figures(traces[streams, arm])
        found["cpu"] = spent / found["tokens"]
        samples[streams, arm].append(found)
        return 1 / float(found["whole" if args.rate else "steady"])

    calls: list[Callable[[], float]] = [lambda key=key: run(*key) for key in keys]  # type: ignore[misc]
    seconds = dict(zip(keys, interleave(calls, args.repeats, args.warmups), strict=True))
    rows = []
    for key in keys:
        streams, arm = key
        counted = samples[key][args.warmups :]
        middle = {n: statistics.median(s[n] for s in counted) for n in counted[0]}
        row = {"streams": streams, "arm": arm, "samples": counted, "median": middle}
        for label, other in (("off", (streams, "off")), ("one stream off", (1, "off"))):
            if other in seconds:
                row[f"over {label}"] = ratio(seconds[key], seconds[other])
        if (streams, "off") in traces:
            base = traces[streams, "off"]
            row["ids"] = same_ids(plain, loads[streams], base, traces[key])
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table: tokens per second, milliseconds, ratios with their range."""
    print("tokens per second; milliseconds to the first token, between chunks, per token")
    print("streams arm     " + "".join(f"{label:>9}" for _, label, _ in COLUMNS) + "  over off")
    for row in rows:
        cells = "".join(f"{row['median'][name] * unit:9.2f}" for name, _, unit in COLUMNS)
        print(f"{row['streams']:7d} {row['arm']:8s}{cells}  {row.get('over off', '')}")
        if "over one stream off" in row:
            print(f"{'':16s}over one stream off: {row['over one stream off']}")
        print(f"{'':16s}ids against off: {row.get('ids', 'not compared')}")


def main() -> None:
    """Parse arguments, measure, print a table."""
    args = parse()
    choose()
    import mlxcel  # after the choice of BLAS
    from mlxcel.assets import standard_prompts
    from mlxcel.config import Settings

    began = time.perf_counter()
    texts = list(standard_prompts().values())
    settings = Settings.from_env(
        weights=args.weights,
        max_rows=max(*args.streams, 5),
        prefix_bytes=0,  # arms are given the same prompts, and none is to read the other's
    )
    with mlxcel.load(args.model, args.drafter, config=settings) as llm:
        summary = llm.call(lambda engine: engine.model.representation.summary)
        print(f"model {args.model}: {summary}; drafter {args.drafter}")
        rows: Any
        if args.long:
            from benchmarks.load_long import measure_long, show_long

            rows = measure_long(args, llm, texts, settings.prefill_chunk)
            show_long(rows)
        else:
            rows = measure(args, llm, texts)
            show(rows)
    print(f"load average {', '.join(f'{value:.1f}' for value in os.getloadavg())}")
    if args.json:
        record = {"arguments": {k: str(v) for k, v in vars(args).items()}, "rows": rows,
                  "wall_seconds": time.perf_counter() - began}  # fmt: skip
        args.json.write_text(json.dumps(record, indent=1, default=vars))


if __name__ == "__main__":
    main()

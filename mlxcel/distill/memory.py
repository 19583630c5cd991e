"""How much memory a distillation takes, stated before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.distill.options import Options
from mlxcel.distill.synthesis import STEP
from mlxcel.errors import CapacityError
from mlxcel.models.target import Target

__all__ = ["Plan", "plan"]

GIB = 1 << 30
MOST_ROWS = {"cuda": 4096, "metal": 512, "cpu": 64}
TRAIN_ROWS = {"cuda": 40, "metal": 8, "cpu": 4}
CHUNK_LOGITS = {"cuda": 1 << 27, "metal": 1 << 25, "cpu": 1 << 24}
# A buffer that is still in use when it is written is copied: room for that on a GPU.
KV_FACTOR = {"cuda": 2.1, "metal": 2.1, "cpu": 1.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes that were chosen, and what they need.

    Attributes
    ----------
    rows : int
        Rows written together.
    batches : int
        How often.
    train_rows : int
        Rows of a training step.
    chunk : int
        Places whose logits are held at once.
    keep_hidden : bool
        Whether the target's hidden states of the whole text are kept.
    weights, synthesis, training, hidden : int
        Bytes of each.
    free : int
        Bytes there are.
    """

    rows: int
    batches: int
    train_rows: int
    chunk: int
    keep_hidden: bool
    weights: int
    synthesis: int
    training: int
    hidden: int
    free: int

    @property
    def needed(self) -> int:
        """Bytes at the highest point."""
        kept = self.hidden if self.keep_hidden else 0
        return self.weights + max(self.synthesis, self.training + kept)

    def sentence(self) -> str:
        """One line for people."""
        kept = f"{self.hidden / GIB:.1f} kept" if self.keep_hidden else "computed anew each time"
        return (
            f"memory: {self.needed / GIB:.1f} GiB needed of {self.free / GIB:.1f}: target "
            f"{self.weights / GIB:.1f}, text {self.synthesis / GIB:.1f} ({self.rows} rows), "
            f"training {self.training / GIB:.1f} ({self.train_rows} rows, logits of {self.chunk} "
            f"places at once), hidden states {kept}"
        )


def plan(
    target: Target, options: Options, backend: str, free: int, processes: int = 1
) -> Plan:
    """Choose sizes that fit one process; what the user named is not changed.

    Raises
    ------
    CapacityError
        They do not fit; the message says what to lower.
    """
    args = target.core.args
    item = int(target.body.norm.weight.dtype.size)
    weights = target.nbytes
    wanted = max(1, -(-options.tokens // options.length))
    rows = options.rows or min(MOST_ROWS[backend], 1 << max(wanted - 1, 0).bit_length())
    room = int(free * 0.92) - weights
    if not options.rows:
        while rows > 1 and _synthesis(target, rows, options.length, item, backend, False) > room:
            rows //= 2
    train_rows = options.train_rows or TRAIN_ROWS[backend]
    batches = -(-wanted // rows)
    train_rows = min(train_rows, rows * batches)
    drafts = min(options.draft_vocab, target.vocab_size)
    chunk = max(1, min(CHUNK_LOGITS[backend] // drafts, train_rows * options.length))
    training = _training(args, options, train_rows, chunk, drafts, 4 if item == 4 else 2)
    hidden = rows * batches * options.length * int(args.hidden_size) * item // processes
    result = Plan(
        rows=rows, batches=batches, train_rows=train_rows, chunk=chunk,
        keep_hidden=hidden + training < 0.8 * room, weights=weights,
        synthesis=_synthesis(target, rows, options.length, item, backend, bool(options.rows)),
        training=training, hidden=hidden, free=free,
    )  # fmt: skip
    if result.needed > free:
        raise CapacityError(
            f"{result.sentence()}; lower --batch-rows, --train-rows or --length", param="rows"
        )
    return result


def _synthesis(target: Target, rows: int, length: int, item: int, backend: str, named: bool) -> int:
    args = target.core.args
    heads = int(args.num_key_value_heads or args.num_attention_heads)
    size = int(getattr(args, "head_dim", None) or args.hidden_size // args.num_attention_heads)
    capacity = -(-length // STEP) * STEP
    kv = rows * capacity * len(target.body.layers) * heads * size * 2 * item
    factor = 1.1 if named else KV_FACTOR[backend]
    return int(kv * factor) + rows * target.vocab_size * (item + 3 * 4)


def _training(args: object, options: Options, rows: int, chunk: int, drafts: int, item: int) -> int:
    hidden = int(args.hidden_size)  # type: ignore[attr-defined]
    inner = int(args.intermediate_size)  # type: ignore[attr-defined]
    heads = int(args.num_attention_heads)  # type: ignore[attr-defined]
    places = rows * options.length
    layer = places * (24 * hidden + 8 * inner) * item
    scores = 6 * places * heads * options.length * item
    logits = chunk * drafts * (8 * item + 8)
    matrices = 12 * hidden * hidden + 3 * hidden * inner
    return options.unroll * (layer + scores) + logits + 24 * matrices + drafts * hidden * item

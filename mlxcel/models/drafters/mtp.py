"""A multi-token-prediction head: one decoder layer that drafts from the target's hidden states.

The layout is that of the Qwen 3.5 head. A pair (hidden state at position i, token at i + 1)
is normed, joined (embedding first) and passed through one layer of the target's own kind;
the result, after a last norm, goes through the target's output head and predicts the token
at i + 2. It also is the hidden state of the next pair, so the head drafts any number of
tokens. RoPE takes position i for that pair.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import llama, qwen2, qwen3, qwen3_5, qwen3_next

from mlxcel.errors import LoadError
from mlxcel.models.drafters.chain_head import FinalFeatures
from mlxcel.models.target import Target

__all__ = ["MTP_TYPE", "MTPHead", "flat_weights", "head_config", "load_mtp"]

MTP_TYPE = "mlxcel_mtp"
PREFIX = "mtp."
DRAFT_IDS = "draft_ids"


def _full_attention(layer: Any) -> Callable[[Any], nn.Module]:
    """A hybrid model's layer of full attention, of which its heads are made."""
    return lambda args: layer(args, args.full_attention_interval - 1)


_LAYERS: dict[type, Callable[[Any], nn.Module]] = {
    llama.Model: llama.TransformerBlock,
    qwen2.Model: qwen2.TransformerBlock,
    qwen3.Model: qwen3.TransformerBlock,
    qwen3_5.TextModel: _full_attention(qwen3_5.DecoderLayer),
    qwen3_next.Model: _full_attention(qwen3_next.Qwen3NextDecoderLayer),
}
_CHECKED = (
    "hidden_size",
    "vocab_size",
    "target_model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)


class MTPHead(FinalFeatures, nn.Module):
    """Multi-token-prediction head of one target.

    Parameters
    ----------
    target : Target
        The model it drafts for; its embedding and output head are shared, not copied.
    draft_ids : mx.array, optional
        uint32 ``(n,)``: the only ids it may propose, whose rows of the output head are
        gathered once; all ids by default.

    Raises
    ------
    LoadError
        The target is of a kind that no head is known for.
    """

    def __init__(self, target: Target, draft_ids: mx.array | None = None) -> None:
        super().__init__()
        layer = next((_LAYERS[kind] for kind in type(target.core).__mro__ if kind in _LAYERS), None)
        if layer is None or not target.split:
            known = ", ".join(sorted(kind.__module__.rpartition(".")[2] for kind in _LAYERS))
            raise LoadError(
                f"target model type {model_type(target)!r}: no MTP head is known for it; "
                f"supported are {known}"
            )
        args = target.core.args
        size, eps = int(args.hidden_size), float(args.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.layers = [layer(args)]
        self.norm = nn.RMSNorm(size, eps=eps)
        self._target = target
        self._draft_ids: mx.array | None = None
        self._rows: mx.array | None = None
        self.restrict(draft_ids)

    def blank(self) -> mx.array:
        """See `ChainHead`."""
        norm = self.pre_fc_norm_hidden.weight
        return mx.zeros((1, 1, norm.shape[0]), norm.dtype)

    @property
    def draft_ids(self) -> mx.array | None:
        """Ids of the head's logits, uint32 ``(n,)``, or ``None`` for the whole vocabulary."""
        return self._draft_ids

    def restrict(self, draft_ids: mx.array | None) -> None:
        """Change the draft vocabulary; see the class."""
        self._draft_ids = None if draft_ids is None else draft_ids.astype(mx.uint32)
        self._rows = None if draft_ids is None else output_rows(self._target, draft_ids)

    def fuse(self, hidden: mx.array, tokens: mx.array) -> mx.array:
        """Join hidden states with the embeddings of the tokens after them.

        Parameters
        ----------
        hidden : mx.array
            ``(rows, width, hidden)``, the target's after its final norm, or the head's own.
        tokens : mx.array
            uint32 ``(rows, width)``, the token that follows each hidden state.

        Returns
        -------
        mx.array
            ``(rows, width, hidden)``, input of `forward`.
        """
        embedding = self._target.body.embed_tokens(tokens).astype(hidden.dtype)
        parts = [self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)]
        return self.fc(mx.concatenate(parts, axis=-1))  # type: ignore[no-any-return]

    def forward(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """Decoder layer and final norm.

        Parameters
        ----------
        x : mx.array
            ``(rows, width, hidden)`` from `fuse`.
        mask : mx.array, str or None
            As mlx-lm layers take it.
        cache : object or None
            One cache object of mlx-lm's interface, or ``None`` for a block from position 0.

        Returns
        -------
        mx.array
            ``(rows, width, hidden)``: input of `logits`, and hidden state of the next pair.
        """
        return self.norm(self.layers[0](x, mask, cache))  # type: ignore[no-any-return]

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits ``(rows, width, n)`` of `draft_ids`, or of the whole vocabulary."""
        if self._rows is None:
            return self._target.logits(hidden)
        return hidden @ self._rows.T

    def save(self, folder: str | os.PathLike[str], config: dict[str, Any]) -> None:
        """Write ``config.json`` and ``model.safetensors`` (float16).

        Parameters
        ----------
        folder : str or path
            Made if missing.
        config : dict
            As from `head_config`.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        arrays = {
            PREFIX + name: value.astype(mx.float16) for name, value in flat_weights(self).items()
        }
        if self._draft_ids is not None:
            arrays[DRAFT_IDS] = self._draft_ids
        temporary = path / "unfinished.safetensors"
        mx.save_safetensors(str(temporary), arrays, metadata={"format": "mlx"})
        os.replace(temporary, path / "model.safetensors")
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (path / "config.json").write_text(text, encoding="utf-8")


def flat_weights(module: nn.Module) -> dict[str, mx.array]:
    """Parameters of a module by path."""
    pairs: Any = tree_flatten(module.parameters())
    return dict(pairs)


def model_type(target: Target) -> str:
    """Name of the target's architecture."""
    args = getattr(target.core, "args", None)
    return str(getattr(args, "model_type", None) or target.config.get("model_type", "unknown"))


def output_rows(target: Target, ids: mx.array) -> mx.array:
    """Rows of the target's output head as one dense matrix ``(n, hidden)``."""
    core = target.core
    tied = getattr(core.args, "tie_word_embeddings", False) or not hasattr(core, "lm_head")
    module = target.body.embed_tokens if tied else core.lm_head
    if not hasattr(module, "bits"):
        return module.weight[ids]  # type: ignore[no-any-return]
    biases = module.get("biases")
    return mx.dequantize(
        module.weight[ids],
        module.scales[ids],
        None if biases is None else biases[ids],
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
    )


def head_config(head: MTPHead, *, block_width: int = 4, **more: Any) -> dict[str, Any]:
    """``config.json`` of a head; ``more`` is added as it is.

    Parameters
    ----------
    head : MTPHead
        The head.
    block_width : int
        Width it is meant for, in tokens: one bonus token and the drafts.
    **more
        For instance ``target`` (name and fingerprint) and ``training`` (figures).
    """
    ids = head.draft_ids
    facts = _facts(head._target)
    drafts = facts["vocab_size"] if ids is None else int(ids.shape[0])
    return {"model_type": MTP_TYPE, **facts, "draft_vocab_size": drafts,
            "block_width": block_width, **more}  # fmt: skip


def _facts(target: Target) -> dict[str, Any]:
    args = target.core.args
    return {
        "target_model_type": model_type(target),
        "hidden_size": int(args.hidden_size),
        "vocab_size": target.vocab_size,
        "num_attention_heads": int(args.num_attention_heads),
        "num_key_value_heads": int(args.num_key_value_heads or args.num_attention_heads),
        "intermediate_size": int(args.intermediate_size),
    }


def load_mtp(folder: str | os.PathLike[str], target: Target) -> MTPHead:
    """Load a head for a target; everything is checked before a weight is read.

    Parameters
    ----------
    folder : str or path
        Holds ``config.json`` and ``model.safetensors``.
    target : Target
        The model the head was made for.

    Returns
    -------
    MTPHead
        In the target's activation type.

    Raises
    ------
    LoadError
        Names the file, and what is missing, damaged or made for another target.
    """
    path = Path(folder)
    config = _read_config(path / "config.json", target)
    head = MTPHead(target)
    wanted = {PREFIX + k: tuple(v.shape) for k, v in flat_weights(head).items()}
    drafts = config.get("draft_vocab_size", target.vocab_size)
    if drafts != target.vocab_size:
        wanted[DRAFT_IDS] = (drafts,)
    file = path / "model.safetensors"
    _check_tensors(file, wanted)
    arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    ids = arrays.pop(DRAFT_IDS, None) if DRAFT_IDS in wanted else None
    if ids is not None and bool(mx.any(ids >= target.vocab_size).item()):
        raise LoadError(f"{file}: {DRAFT_IDS} has an id outside the target's {target.vocab_size}")
    dtype = target.body.norm.weight.dtype
    named = [(name, arrays[name].astype(dtype)) for name in wanted if name != DRAFT_IDS]
    head.update(tree_unflatten([(name[len(PREFIX) :], value) for name, value in named]))
    head.restrict(ids)
    head.eval()
    mx.eval(head.parameters(), [] if head._rows is None else head._rows)
    return head


def _read_config(path: Path, target: Target) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise LoadError(f"{path}: not JSON: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != MTP_TYPE:
        raise LoadError(f"{path}: model_type must be {MTP_TYPE!r}, got {kind!r}")
    MTPHead(target)  # refuses a kind of target before its fields are compared
    facts = _facts(target)
    for name in _CHECKED:
        if config.get(name) != facts[name]:
            raise LoadError(
                f"{path}: {name} is {config.get(name)!r}, but the target's is {facts[name]!r}; "
                "the head was made for another target"
            )
    drafts = config.get("draft_vocab_size", facts["vocab_size"])
    if type(drafts) is not int or not 0 < drafts <= facts["vocab_size"]:
        bound = facts["vocab_size"]
        raise LoadError(f"{path}: draft_vocab_size must be 1 to {bound}, got {drafts!r}")
    return config  # type: ignore[no-any-return]


def _check_tensors(path: Path, wanted: dict[str, tuple[int, ...]]) -> None:
    """Check names, shapes and completeness of a safetensors file from its header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else size
            header = json.loads(file.read(length)) if length <= size - 8 else None
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise LoadError(f"{path}: damaged safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise LoadError(f"{path}: not a complete safetensors file ({size} bytes)")
    try:
        found = {k: tuple(v["shape"]) for k, v in header.items() if k != "__metadata__"}
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        ends = [int(v["data_offsets"][1]) for v in tensors.values()]
        kinds = {k: v["dtype"] for k, v in tensors.items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{path}: damaged safetensors header: {error}") from error
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise LoadError(f"{path}: missing tensors: {', '.join(missing)}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise LoadError(f"{path}: {name} has shape {found[name]}, expected {shape}")
        allowed = ("U32",) if name == DRAFT_IDS else ("F16", "BF16", "F32")
        if kinds[name] not in allowed:
            raise LoadError(
                f"{path}: {name} has dtype {kinds[name]!r}, expected {' or '.join(allowed)}"
            )
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise LoadError(f"{path}: {size} bytes, its header says {expected}; fetch it again")

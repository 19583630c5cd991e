"""Tiny EAGLE heads, their checkpoints in every spelling, and their equations in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mlxcel.models.drafters.eagle import EagleHead
from mlxcel.models.drafters.eagle3 import Eagle3Head
from mlxcel.models.drafters.eagle_config import read_eagle
from mlxcel.models.target import Target
from tests.support import tiny

KINDS = ("eagle", "eagle3")
LAYERS = 8  # the fewest but one whose usual places are three
USUAL = (2, 4, 5)
IDS_KEY = "eagle_aux_hidden_state_layer_ids"
Head = EagleHead | Eagle3Head
Array = np.ndarray[Any, np.dtype[np.float64]]


def config_of(vocab: int = tiny.VOCAB, drafts: int | None = None, **more: Any) -> dict[str, Any]:
    """A config in the authors' spelling; one of EAGLE-3 says how many ids it drafts."""
    own = {} if drafts is None else {"draft_vocab_size": drafts}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
        "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": vocab,
        "max_position_embeddings": 2048, **own, **more,
    }  # fmt: skip


def draft_ids(vocab: int = tiny.VOCAB) -> mx.array:
    """Two of three ids."""
    return mx.array([each for each in range(vocab) if each % 3], mx.uint32)


def tiny_head(
    kind: str, target: Target, seed: int = 5, own_embedding: bool = False, **more: Any
) -> Head:
    """A head whose weights are all random; it does not yet guess anything."""
    vocab = target.vocab_size
    ids = draft_ids(vocab)
    if kind == "eagle":
        head: Head = EagleHead(
            read_eagle(config_of(vocab, **more), "eagle", "config.json"), target, bias=True
        )
    else:
        config = read_eagle(config_of(vocab, int(ids.size), **more), "eagle3", "config.json")
        head = Eagle3Head(config, target, own_embedding=own_embedding)
        head.restrict(ids)
    flat = tree_flatten(head.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))
    random = [
        (name, mx.random.normal(v.shape, key=k) * (0.2 if v.ndim == 2 else 0.3) + (v.ndim == 1))
        for (name, v), k in zip(flat, keys, strict=True)
    ]
    head.update(tree_unflatten(random))
    head.eval()
    mx.eval(head.parameters())
    target.tap(head.taps)
    return head


def echoing_head(kind: str, target: Target) -> Head:
    """A random head that mostly repeats the target's state: some drafts are accepted."""
    head = tiny_head(kind, target)
    size = 32
    if isinstance(head, EagleHead):
        head.fc.weight = mx.concatenate([mx.zeros((size, size)), mx.eye(size)], axis=1)
        head.fc.bias = head.fc.bias * 0.1
        layer: Any = head.layers[0]
    else:
        last = mx.concatenate([mx.zeros((size, 2 * size)), mx.eye(size)], axis=1)
        head.fc.weight = last + 0.1 * head.fc.weight
        head.lm_head.weight = target.body.embed_tokens.weight[head.draft_ids]
        layer = head.midlayer
    layer.self_attn.o_proj.weight = layer.self_attn.o_proj.weight * 0.5
    layer.mlp.down_proj.weight = layer.mlp.down_proj.weight * 0.3
    mx.eval(head.parameters())
    return head


# -- checkpoints ---------------------------------------------------------------------


def tensors_of(head: Head, spelling: str = "authors") -> dict[str, mx.array]:
    """Tensors as they are published: by SafeAILab ("authors"), or by speculators."""
    found = dict(tree_flatten(head.parameters()))
    vocab = head._target.vocab_size
    if isinstance(head, Eagle3Head) and head.draft_ids is not None:
        ids = np.array(head.draft_ids).astype(np.int64)
        used = np.isin(np.arange(vocab), ids)
        found |= {"d2t": mx.array(ids - np.arange(ids.size)), "t2d": mx.array(used)}
    else:
        found["embed_tokens.weight"] = head._target.body.embed_tokens.weight
    if spelling == "authors":
        return found
    renamed = {}
    for name, value in found.items():
        if isinstance(head, Eagle3Head):
            name = name.replace("midlayer.", "layers.0.")
        else:
            name = name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer.")
        renamed[name] = value
    return renamed


def speculators_config(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same head as speculators describe it."""
    own = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", IDS_KEY)
    layer = {name: value for name, value in config.items() if name not in own}
    top = {name: config[name] for name in own if name in config}
    names = {"eagle": "EagleSpeculator", "eagle3": "Eagle3Speculator"}
    return {
        "architectures": [names[kind]], "speculators_model_type": kind, **top,
        "transformer_layer_config": layer, "target_hidden_size": None,
        "speculators_config": {"algorithm": kind},
    }  # fmt: skip


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, mx.array]) -> Path:
    """Write config and weights in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# -- the equations -------------------------------------------------------------------


def rms(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotated(x: Array, base: float = 10000.0) -> Array:
    """Positions are those of the first axis of ``(length, heads, head_dim)``."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def attention(w: dict[str, Array], start: str, x: Array, heads: int = 4, groups: int = 2) -> Array:
    """Causal attention of a whole text ``(length, n)``."""
    q, k, v = (x @ w[f"{start}self_attn.{part}_proj.weight"].T for part in "qkv")
    q = rotated(q.reshape(len(x), heads, -1))
    k = rotated(k.reshape(len(x), groups, -1))
    v = v.reshape(len(x), groups, -1)
    k, v = (np.repeat(each, heads // groups, axis=1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1)
    return out @ w[f"{start}self_attn.o_proj.weight"].T


def gated(w: dict[str, Array], start: str, x: Array) -> Array:
    gate, up = (x @ w[f"{start}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ w[f"{start}mlp.down_proj.weight"].T


def weights_of(module: Any) -> dict[str, Array]:
    return {name: np.array(v, np.float64) for name, v in tree_flatten(module.parameters())}


class PlainTarget:
    """The tiny llama: what lies behind each layer, and the final hidden states."""

    def __init__(self, model: Any) -> None:
        self.w = weights_of(model)
        self.embedding = self.w["model.embed_tokens.weight"]

    def states(self, tokens: Any) -> list[Array]:
        """The embedding, then what each layer puts out, then the normed last one."""
        x = self.embedding[np.array(tokens)]
        found = [x]
        for at in range(LAYERS):
            start = f"model.layers.{at}."
            normed = rms(x, self.w[f"{start}input_layernorm.weight"])
            x = x + attention(self.w, start, normed)
            x = x + gated(self.w, start, rms(x, self.w[f"{start}post_attention_layernorm.weight"]))
            found.append(x)
        return [*found, rms(x, self.w["model.norm.weight"])]


class PlainHead:
    """A head over a whole text at a time."""

    def __init__(
        self, head: Head, plain: PlainTarget, wrong: str = "", *, before_residual: bool = False
    ) -> None:
        self.w, self.plain, self.wrong = weights_of(head), plain, wrong
        self.three = isinstance(head, Eagle3Head)
        self.taps = head.taps
        self.ids = None if head.draft_ids is None else np.array(head.draft_ids)
        self.before_residual = before_residual
        self.embedding = self.w.get("embed_tokens.weight", plain.embedding)

    def features(self, tokens: Any) -> Array:
        """What the first pairs are made of, ``(length, hidden)``."""
        states = self.plain.states(tokens)
        if not self.three:
            return states[LAYERS] if self.wrong == "no norm of the target" else states[-1]
        taps = [at + 1 for at in self.taps] if self.wrong == "layers" else self.taps
        found = np.concatenate([states[at] for at in taps], axis=-1)
        if "input_norm.weight" in self.w:
            found = rms(found, self.w["input_norm.weight"])
        return found @ self.w["fc.weight"].T

    def layer(self, states: Array, tokens: Any) -> Array:
        """States of the next pairs from those of all pairs so far."""
        embedding = self.embedding[np.array(tokens)]
        return (self._three if self.three else self._one)(states, embedding)

    def _one(self, states: Array, embedding: Array) -> Array:
        pair = [states, embedding] if self.wrong == "order" else [embedding, states]
        x = np.concatenate(pair, axis=-1) @ self.w["fc.weight"].T
        if self.wrong != "no bias" and "fc.bias" in self.w:
            x = x + self.w["fc.bias"]
        norm = self.w["layers.0.post_attention_layernorm.weight"]
        normed = rms(x, norm) if self.wrong == "a norm of the input" else x
        x = x + attention(self.w, "layers.0.", normed)
        x = x + gated(self.w, "layers.0.", rms(x, norm))
        return rms(x, norm) if self.wrong == "a last norm" else x

    def _three(self, states: Array, embedding: Array) -> Array:
        start = "midlayer."
        e = rms(embedding, self.w[f"{start}input_layernorm.weight"])
        m = states
        if self.wrong != "no hidden_norm":
            m = rms(states, self.w[f"{start}hidden_norm.weight"])
        pair = [m, e] if self.wrong == "order" else [e, m]
        before = self.before_residual != (self.wrong == "residual")
        x = (m if before else states) + attention(self.w, start, np.concatenate(pair, axis=-1))
        return x + gated(self.w, start, rms(x, self.w[f"{start}post_attention_layernorm.weight"]))

    def logits(self, state: Array) -> Array:
        if not self.three:
            return self.plain.embedding @ state
        normed = state if self.wrong == "no last norm" else rms(state, self.w["norm.weight"])
        return self.w["lm_head.weight"] @ normed

    def again(self, state: Array) -> Array:
        """What a state is in the next pair."""
        late = self.wrong == "the normed state again"
        return rms(state, self.w["norm.weight"]) if late else state

    def chain(self, features: Array, tokens: Any, steps: int, choose: Any = None) -> list[Any]:
        """Logits of steps after true pairs; the tokens between them are chosen, or given.

        Parameters
        ----------
        features : array
            ``(pairs, hidden)`` from `features`.
        tokens : sequence of int
            The tokens after them; more of them are fed to the chain.
        steps : int
            How many.
        choose : callable, optional
            From logits and step to a token, which is returned in place of the logits.
        """
        pairs, states, fed, found = len(features), features, list(tokens), []
        for step in range(steps):
            state = self.layer(states, fed[: pairs + step])[-1]
            out = self.logits(state)
            if choose is not None:
                out = choose(out, step)
                fed = [*fed[: pairs + step], out]
            found.append(out)
            states = np.concatenate([states, self.again(state)[None]])
        return found

"""Writes tiny random Qwens of two kinds with their head, and what torch makes of them.

Runs where torch and transformers are; nothing of this project is imported.

    python make_qwen.py FOLDER

transformers has no head for these models and refuses assisted generation with them, so the head
is put together from its decoder layer and norm, as vLLM and the published tensor names have it.
Qwen 3.5 is published inside a wrapper and with all experts in one tensor, Qwen3-Next without and
with a tensor for each.

Per case there is a folder with ``target`` (the head inside, as published) and ``cases.npz``, see
``head_cases.py``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from head_cases import VOCAB, cases_of, causal
from safetensors.torch import save_file
from transformers import (
    PreTrainedConfig,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4, "max_position_embeddings": 512,
    "attn_implementation": "eager", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
ROTATION = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
DENSE = {"intermediate_size": 128}
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
# model, config and layer by kind
KINDS = {
    "qwen3_5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3_5DecoderLayer),
    "qwen3_5_moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5MoeDecoderLayer),
    "qwen3_next": (Qwen3NextForCausalLM, Qwen3NextConfig, Qwen3NextDecoderLayer),
}
# name: kind, tied embedding, sizes of the feed-forward
CASES = {
    "qwen-tied": ("qwen3_5", True, DENSE),
    "qwen-untied": ("qwen3_5", False, DENSE),
    "qwen-experts": ("qwen3_5_moe", False, EXPERTS),
    "qwen-next": ("qwen3_next", False, EXPERTS),
}


class Head(torch.nn.Module):
    """The names of its state dict, behind ``mtp.``, are the published ones."""

    def __init__(self, config: PreTrainedConfig, layer: type[torch.nn.Module]) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        own = copy.deepcopy(config)
        own.layer_types = ["full_attention"]
        own._attn_implementation = "eager"
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps=eps)
        self.layers = torch.nn.ModuleList([layer(own, 0)])
        self.norm = Qwen3_5RMSNorm(size, eps=eps)

    def forward(
        self, target: torch.nn.Module, hidden: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """All pairs from position 0, without a cache."""
        parts = [
            self.pre_fc_norm_embedding(target.get_input_embeddings()(tokens)),
            self.pre_fc_norm_hidden(hidden),
        ]
        x = self.fc(torch.cat(parts, dim=-1))
        length = x.shape[1]
        rotation = target.model.rotary_emb(x, torch.arange(length)[None])
        return self.norm(
            self.layers[0](
                x, position_embeddings=rotation, attention_mask=causal(length), cache=None
            )
        )

    def states_of(self, target: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return target.model(ids).last_hidden_state

    def logits(self, target: torch.nn.Module, state: torch.Tensor) -> torch.Tensor:
        return target.lm_head(state)

    def target_id(self, own: int) -> int:
        return own


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Norms as what is to be added to one, and decays slow enough for the text to matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim >= 2:
            value.copy_(0.15 * noise)
        elif name.endswith("A_log"):
            value.copy_(torch.log(0.02 + 0.15 * noise.abs()))
        elif name.endswith("dt_bias"):
            value.copy_(noise)
        elif name.endswith("linear_attn.norm.weight"):  # the gated norm is a multiplier
            value.copy_(1 + 0.2 * noise)
        else:  # published multipliers before ``fc`` are below a half
            value.copy_(0.1 * noise - (0.6 if name.startswith("pre_fc") else 0.0))


def target_config(target: torch.nn.Module, kind: str) -> dict[str, Any]:
    """As published."""
    text = target.config.to_dict() | {"mtp_num_hidden_layers": 1, "full_attention_interval": 4}
    if kind != "qwen3_next":
        return {"model_type": kind, "text_config": text}
    rotation = text.pop("rope_parameters")
    return text | {
        "rope_scaling": None, **{name: rotation[name] for name in ROTATION if name != "rope_type"}
    }  # fmt: skip


def apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With a tensor for each projection of each expert."""
    found = {}
    for name, value in tensors.items():
        start, _, last = name.rpartition(".experts.")
        if not start:
            found[name] = value
            continue
        halves = {"gate_up_proj": ("gate_proj", "up_proj")}.get(last, (last,))
        for half, part in zip(halves, value.chunk(len(halves), dim=1), strict=True):
            for expert, own in enumerate(part):
                found[f"{start}.experts.{expert}.{half}.weight"] = own
    return found


def write(target: torch.nn.Module, head: Head, kind: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    config = target_config(target, kind)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    tied = target.config.tie_word_embeddings
    tensors = {
        name: value
        for name, value in target.state_dict().items()
        if not (tied and name.startswith("lm_head"))
    }
    if kind != "qwen3_next":
        wrapped = "model.language_model."
        tensors = {name.replace("model.", wrapped, 1): v for name, v in tensors.items()}
    tensors |= {f"mtp.{name}": value for name, value in head.state_dict().items()}
    if kind == "qwen3_next":
        tensors = apart(tensors)
    whole = {name: value.clone().contiguous() for name, value in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for seed, (name, (kind, tied, feed_forward)) in enumerate(CASES.items()):
        model, configure, layer = KINDS[kind]
        rotation = ROTATION | ({} if kind == "qwen3_next" else {"mrope_section": [2, 1, 1]})
        config = configure(
            **SIZES, **feed_forward, rope_parameters=rotation, tie_word_embeddings=tied
        )
        target = model(config).eval()
        head = Head(target.config, layer).eval()
        randomise(target, 31 + 2 * seed)
        randomise(head, 32 + 2 * seed)
        write(target, head, kind, folder / name / "target")
        np.savez(folder / name / "cases.npz", **cases_of(target, head))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes tiny random Qwen 3.5 checkpoints with their head, and what torch makes of them.

Runs where torch and transformers are; nothing of this project is imported.

    python make_qwen.py FOLDER

transformers has no head for these models and refuses assisted generation with them, so the head
is put together from its decoder layer and norm, as vLLM and the published tensor names have it.
Per case there is a folder with ``target`` (the head inside, as published) and ``cases.npz``, see
``head_cases.py``.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from head_cases import VOCAB, cases_of, causal
from safetensors.torch import save_file
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4, "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1]},
    "attn_implementation": "eager", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
DENSE = {"intermediate_size": 128}
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
# name: tied embedding, sizes of the feed-forward
CASES = {
    "qwen-tied": (True, DENSE),
    "qwen-untied": (False, DENSE),
    "qwen-experts": (False, EXPERTS),
}


class Head(torch.nn.Module):
    """The names of its state dict, behind ``mtp.``, are the published ones."""

    def __init__(self, config: Qwen3_5TextConfig | Qwen3_5MoeTextConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        own = copy.deepcopy(config)
        own.layer_types = ["full_attention"]
        own._attn_implementation = "eager"
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps=eps)
        dense = isinstance(config, Qwen3_5TextConfig)
        layer = Qwen3_5DecoderLayer if dense else Qwen3_5MoeDecoderLayer
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
        positions = torch.arange(length).view(1, 1, -1)
        rotation = target.model.rotary_emb(x, positions)
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


def write(target: torch.nn.Module, head: Head, folder: Path) -> None:
    folder.mkdir(parents=True)
    kind = target.config.model_type.removesuffix("_text")
    text = target.config.to_dict() | {"mtp_num_hidden_layers": 1, "full_attention_interval": 4}
    config = {"model_type": kind, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    tied = target.config.tie_word_embeddings
    tensors = {
        name.replace("model.", "model.language_model.", 1): value.clone().contiguous()
        for name, value in target.state_dict().items()
        if not (tied and name.startswith("lm_head"))
    }
    tensors |= {f"mtp.{name}": value.clone() for name, value in head.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for seed, (name, (tied, feed_forward)) in enumerate(CASES.items()):
        make, configure = (
            (Qwen3_5ForCausalLM, Qwen3_5TextConfig)
            if feed_forward is DENSE
            else (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig)
        )
        target = make(configure(**SIZES, **feed_forward, tie_word_embeddings=tied)).eval()
        head = Head(target.config).eval()
        randomise(target, 31 + 2 * seed)
        randomise(head, 32 + 2 * seed)
        write(target, head, folder / name / "target")
        np.savez(folder / name / "cases.npz", **cases_of(target, head))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

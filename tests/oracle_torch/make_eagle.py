"""Writes tiny random llamas with EAGLE heads as published, and what torch makes of them.

Runs where torch and transformers are; nothing of this project is imported.

    python make_eagle.py FOLDER

transformers has no EAGLE head. Here they are put together from its llama attention, feed-forward,
norm and rotation, by the equations of Li et al. 2024 (EAGLE) and 2025 (EAGLE-3); the names of the
state dicts are the published ones. Per case there is a folder with ``target``, ``head`` and
``cases.npz``: what ``head_cases.py`` says, and by prompt length L the target's hidden states that
the head reads (``features_L``). One head is written as a pickle too, as SafeAILab publishes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from head_cases import PROMPTS, VOCAB, cases_of, causal
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

HIDDEN, LAYERS, DRAFTED = 64, 8, 176
SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
# As in Llama 3.1, for a text that long wave lengths matter in.
SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One target with its head.

    ``places`` are the layers whose input an EAGLE-3 head reads; ``config`` is what the head's says
    besides its sizes.
    """

    eagle3: bool
    tied: bool = False
    scaled: bool = False
    theta: float = 10000.0
    bias: bool = False
    places: tuple[int, ...] = (2, LAYERS // 2, LAYERS - 3)
    normed_residual: bool = False
    own_embedding: bool = False
    speculators: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


IDS = "eagle_aux_hidden_state_layer_ids"
CASES = {
    # As yuhuili/EAGLE-LLaMA3-Instruct-8B; no theta of its own, so not the target's.
    "eagle": Case(False, config={"bias": False}),
    "eagle-bias": Case(False, tied=True, scaled=True, bias=True, theta=500000.0,
                       config={"rope_theta": 500000.0}),
    # As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B.
    "eagle3": Case(True, scaled=True),
    "eagle3-speculators": Case(
        True, tied=True, scaled=True, theta=500000.0, places=(1, 3, 6), normed_residual=True,
        own_embedding=True, speculators=True,
        config={"norm_before_residual": True, IDS: [1, 3, 6]},
    ),
}  # fmt: skip


class Attending(nn.Module):
    """The layer's parts that both kinds have, at positions from 0."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, 0)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(HIDDEN, eps=config.rms_norm_eps)

    def after(
        self, residual: torch.Tensor, x: torch.Tensor, rotary: LlamaRotaryEmbedding
    ) -> torch.Tensor:
        """Attention of x and feed-forward, both added to the residual."""
        length = x.shape[1]
        rotation = rotary(residual, torch.arange(length)[None])
        attended, _ = self.self_attn(
            x, position_embeddings=rotation, attention_mask=causal(length)
        )
        out = residual + attended
        return out + self.mlp(self.post_attention_layernorm(out))


class Head1(nn.Module):
    """EAGLE-1: no norm in front of the attention, none behind the layer, the target's head."""

    def __init__(self, config: LlamaConfig, case: Case) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.fc = nn.Linear(2 * HIDDEN, HIDDEN, bias=case.bias)
        self.layers = nn.ModuleList([Attending(config)])
        self.rotary = LlamaRotaryEmbedding(config)

    def finish(self, target: nn.Module, generator: torch.Generator) -> None:
        """The embedding is a copy of the target's."""
        self.embed_tokens.weight.copy_(target.get_input_embeddings().weight)

    def features(self, target: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return target.model(ids).last_hidden_state

    def states_of(self, target: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return self.features(target, ids)

    def forward(
        self, target: nn.Module, states: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        x = self.fc(torch.cat([self.embed_tokens(tokens), states], dim=-1))
        return self.layers[0].after(x, x, self.rotary)

    def logits(self, target: nn.Module, state: torch.Tensor) -> torch.Tensor:
        return target.lm_head(state)

    def target_id(self, own: int) -> int:
        return own


class Layer3(Attending):
    """Its attention reads the embedding and the state side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * HIDDEN, rows, bias=False))
        self.input_layernorm = LlamaRMSNorm(HIDDEN, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(HIDDEN, eps=config.rms_norm_eps)


class Head3(nn.Module):
    """EAGLE-3: three of the target's states, a vocabulary of its own, its last norm kept out."""

    def __init__(self, config: LlamaConfig, case: Case) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
        self.midlayer = Layer3(config)
        self.norm = LlamaRMSNorm(HIDDEN, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(HIDDEN, DRAFTED, bias=False)
        if case.own_embedding:
            self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.register_buffer("d2t", torch.zeros(DRAFTED, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(VOCAB, dtype=torch.bool))
        self.rotary = LlamaRotaryEmbedding(config)
        self.places, self.normed_residual = case.places, case.normed_residual

    def finish(self, target: nn.Module, generator: torch.Generator) -> None:
        """Choose the draft vocabulary: ``d2t`` is how far a target's id is from the head's."""
        ids = torch.randperm(VOCAB, generator=generator)[:DRAFTED].sort().values
        self.d2t.copy_(ids - torch.arange(DRAFTED))
        self.t2d[ids] = True

    def features(self, target: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        entering = target.model(ids, output_hidden_states=True).hidden_states
        return torch.cat([entering[at] for at in self.places], dim=-1)

    def states_of(self, target: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.features(target, ids))

    def forward(
        self, target: nn.Module, states: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        table = getattr(self, "embed_tokens", target.get_input_embeddings())
        normed = self.midlayer.hidden_norm(states)
        x = torch.cat([self.midlayer.input_layernorm(table(tokens)), normed], dim=-1)
        return self.midlayer.after(normed if self.normed_residual else states, x, self.rotary)

    def logits(self, target: nn.Module, state: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(state))

    def target_id(self, own: int) -> int:
        return own + int(self.d2t[own])


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Norms matter too; queries are kept short, else rounding would grow from step to step."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if "embed_tokens" in name:
            value.copy_(0.5 * noise)
        elif value.ndim >= 2:
            value.copy_((0.08 if name == "fc.weight" or "q_proj" in name else 0.15) * noise)
        else:
            value.copy_(0.2 * noise + (0.0 if name.endswith("bias") else 1.0))


def rotation(scaled: bool, theta: float) -> dict[str, Any]:
    """As transformers 5 has it."""
    return {"rope_theta": theta} | (SCALED if scaled else {"rope_type": "default"})


def published(scaled: bool, theta: float) -> dict[str, Any]:
    """As checkpoints have it."""
    return {"rope_theta": theta, "rope_scaling": SCALED if scaled else None}


def llama(case: Case) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            **SIZES, num_hidden_layers=LAYERS, tie_word_embeddings=case.tied,
            rope_parameters=rotation(case.scaled, 500000.0), attn_implementation="eager",
        )
    ).eval()  # fmt: skip


def write(folder: Path, config: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: value.clone().contiguous() for name, value in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def write_target(target: LlamaForCausalLM, case: Case, folder: Path) -> None:
    config = {
        **LLAMA, **SIZES, "num_hidden_layers": LAYERS, "tie_word_embeddings": case.tied,
        **published(case.scaled, 500000.0),
    }  # fmt: skip
    tensors = target.state_dict()
    if case.tied:
        tensors.pop("lm_head.weight")
    write(folder, config, tensors)


def write_head(head: Head1 | Head3, case: Case, folder: Path) -> None:
    config = {**LLAMA, **SIZES, "num_hidden_layers": 1, **case.config}
    tensors = head.state_dict()
    if case.eagle3:
        config["draft_vocab_size"] = DRAFTED
    if case.speculators:
        config = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3"}, "target_hidden_size": None,
            "draft_vocab_size": DRAFTED, **case.config,
            "transformer_layer_config": {
                **LLAMA, **SIZES, "num_hidden_layers": 1, **published(case.scaled, case.theta)
            },
        }  # fmt: skip
        tensors = {name.replace("midlayer.", "layers.0."): v for name, v in tensors.items()}
    write(folder, config, tensors)


@torch.no_grad()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for number, (name, case) in enumerate(CASES.items()):
        target = llama(case)
        # A head scales its rotation where its config says so, and only there.
        own = rotation(case.speculators and case.scaled, case.theta)
        config = LlamaConfig(
            **SIZES, num_hidden_layers=1, rope_parameters=own, attn_implementation="eager"
        )
        head = (Head3 if case.eagle3 else Head1)(config, case).eval()
        randomise(target, 61 + 2 * number)
        randomise(head, 62 + 2 * number)
        target.tie_weights()
        head.finish(target, torch.Generator().manual_seed(7))
        write_target(target, case, folder / name / "target")
        write_head(head, case, folder / name / "head")
        if name == "eagle3":
            torch.save(head.state_dict(), folder / name / "pytorch_model.bin")
        found = cases_of(target, head)
        for length in PROMPTS:
            ids = torch.tensor([found[f"prompt_{length}"].tolist()])
            found[f"features_{length}"] = head.features(target, ids)[0].numpy()
        np.savez(folder / name / "cases.npz", **found)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

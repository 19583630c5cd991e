"""Writes tiny random pairings in the published layout, and what transformers makes of them.

Runs where torch and transformers are; nothing of this project is imported.

    python make_cases.py FOLDER

Per pairing there is a folder with ``target``, ``assistant`` and ``cases.npz``: by prompt length
L the target's logits (``logits_L``), its greedy continuation (``greedy_L``), and for each j the
four drafts after j tokens of that (``drafts_L_j``) with their logits (``draft_logits_L_j``). Each
of these comes from a fresh pass, so that no cache of an earlier one can be in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
)

VOCAB, WINDOW, DRAFTS = 264, 16, 4
PROMPTS = (9, 16, 23)
CONTINUED = 18
SLIDING, FULL = "sliding_attention", "full_attention"
SIZES = {
    "vocab_size": VOCAB, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "global_head_dim": 32, "sliding_window": WINDOW, "max_position_embeddings": 512,
    "attn_implementation": "eager", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}
TARGET = SIZES | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
    "layer_types": [SLIDING, SLIDING, FULL] * 2, "final_logit_softcapping": 30.0,
}
ASSISTANT = SIZES | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 4,
}
HEAD = {"backbone_hidden_size": 64, "num_centroids": 8, "centroid_intermediate_top_k": 3}
NO_PLE = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
PLE = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
UNIFIED = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = UNIFIED | {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
}  # fmt: skip
# name: fields of the target, ordered head, unified, how the target is written
FAMILIES = {
    "plain": (NO_PLE, False, False, "wrapped"),
    "ordered": (NO_PLE, True, False, "flat"),
    "per-layer": (PLE, False, False, "global"),
    "shared": (PLE | {"num_kv_shared_layers": 3}, True, False, "wrapped"),
    "unified": (UNIFIED, False, True, "wrapped"),
    "experts": (NO_PLE | EXPERTS, False, False, "wrapped"),
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Fresh models are near constant; norms and scalars are made to matter too.

    Queries are kept short: sharp attention would triple rounding from step to step.
    """
    generator = torch.Generator().manual_seed(seed)
    named = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for name, value in named:
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("token_ordering"):
                value.copy_(torch.randperm(len(value), generator=generator))
            elif value.ndim >= 2:
                value.copy_(0.15 * noise)
            elif name.endswith(("norm.weight", "layer_scalar")) or "layernorm" in name:
                value.copy_((0.3 if "q_norm" in name else 1.0) + 0.2 * noise)


def make_pair(name: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    fields, ordered, unified, _ = FAMILIES[name]
    text, whole, causal, head = (
        (Gemma4UnifiedTextConfig, Gemma4UnifiedAssistantConfig, Gemma4UnifiedForCausalLM,
         Gemma4UnifiedAssistantForCausalLM)
        if unified
        else (Gemma4TextConfig, Gemma4AssistantConfig, Gemma4ForCausalLM,
              Gemma4AssistantForCausalLM)
    )  # fmt: skip
    own = {} if unified else NO_PLE
    own = own | {name: fields[name] for name in UNIFIED if name in fields}
    target = causal(text(**TARGET, **fields)).eval()
    config = whole(text_config=text(**ASSISTANT, **own), use_ordered_embeddings=ordered, **HEAD)
    config._attn_implementation = "eager"
    assistant = head(config).eval()
    seed = 1 + 2 * list(FAMILIES).index(name)
    randomise(target, seed)
    randomise(assistant, seed + 1)
    assistant.tie_weights()
    target.tie_weights()
    return target, assistant


def write_target(target: torch.nn.Module, folder: Path, form: str, unified: bool) -> None:
    """As published: inside a wrapper, with a prefix, and without the tied head."""
    if form == "flat":
        target.save_pretrained(folder)
        return
    folder.mkdir(parents=True)
    text = json.loads(target.config.to_json_string(use_diff=form == "wrapped"))
    if form == "global":  # the spelling before 5.24
        text.pop("per_layer_config")
        text["global_head_dim"] = SIZES["global_head_dim"]
    kind = "gemma4_unified" if unified else "gemma4"
    text["model_type"] = f"{kind}_text"
    config = {"model_type": kind, "text_config": text, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        "model.language_model." + name.removeprefix("model."): value.clone().contiguous()
        for name, value in target.state_dict().items()
        if not name.startswith("lm_head")
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def drafts_after(
    target: torch.nn.Module, assistant: torch.nn.Module, cached: list[int], pending: int
) -> tuple[np.ndarray, np.ndarray]:
    """The chained steps, from a fresh pass over what is cached."""
    out = target(
        torch.tensor([cached]), output_hidden_states=True, return_shared_kv_states=True,
        use_cache=True,
    )  # fmt: skip
    state = out.hidden_states[-1][:, -1:]
    token, tokens, logits = torch.tensor([[pending]]), [], []
    for _ in range(DRAFTS):
        embedding = target.get_input_embeddings()(token)
        step = assistant(
            inputs_embeds=torch.cat([embedding, state], dim=-1),
            position_ids=torch.tensor([[len(cached)]]),
            shared_kv_states=out.shared_kv_states,
            use_cache=False,
        )
        token, state = step.logits.argmax(-1), step.last_hidden_state
        tokens.append(int(token))
        logits.append(step.logits[0, 0].numpy())
    return np.array(tokens), np.array(logits)


@torch.no_grad()
def cases_of(target: torch.nn.Module, assistant: torch.nn.Module) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    plain = {"max_new_tokens": CONTINUED, "do_sample": False, "eos_token_id": None}
    for length in PROMPTS:
        prompt = [(7 * at + 3 * length) % VOCAB for at in range(length)]
        ids = torch.tensor([prompt])
        greedy = target.generate(ids, pad_token_id=0, **plain)[0, length:].tolist()
        assistant.generation_config.num_assistant_tokens = DRAFTS
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assisted = target.generate(ids, assistant_model=assistant, pad_token_id=0, **plain)
        assert assisted[0, length:].tolist() == greedy, "transformers disagrees with itself"
        found[f"prompt_{length}"] = np.array(prompt)
        found[f"greedy_{length}"] = np.array(greedy)
        found[f"logits_{length}"] = target(ids).logits[0].numpy()
        for at in range(CONTINUED - 1):
            tokens, logits = drafts_after(
                target, assistant, [*prompt, *greedy[:at]], greedy[at]
            )
            found[f"drafts_{length}_{at}"] = tokens
            found[f"draft_logits_{length}_{at}"] = logits
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name, (_, _, unified, form) in FAMILIES.items():
        target, assistant = make_pair(name)
        write_target(target, folder / name / "target", form, unified)
        assistant.save_pretrained(folder / name / "assistant")
        np.savez(folder / name / "cases.npz", **cases_of(target, assistant))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

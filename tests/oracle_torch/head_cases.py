"""What torch makes of a target and a head with a cache of its own; for the ``make_*`` scripts.

Runs where torch and transformers are; nothing of this project is imported.

A case is a dictionary of arrays. By prompt length L it has the prompt (``prompt_L``), the target's
logits (``logits_L``), its greedy continuation (``greedy_L``), and for each j the four drafts after
j tokens of that (``drafts_L_j``) with their logits (``draft_logits_L_j``). Each of these comes from
a fresh pass without any cache, so that nothing of an earlier one can be in it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

VOCAB, DRAFTS, CONTINUED = 264, 4, 18
PROMPTS = (1, 9, 23)


class Head(Protocol):
    """A head over a whole text, without a cache."""

    def states_of(self, target: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """The target's states that the first pairs are made of, ``(1, length, hidden)``."""

    def __call__(
        self, target: torch.nn.Module, states: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """States of the next pairs, of the same shape."""

    def logits(self, target: torch.nn.Module, state: torch.Tensor) -> torch.Tensor:
        """Of a state ``(1, 1, hidden)``, in the head's own vocabulary."""

    def target_id(self, own: int) -> int:
        """The target's id of a token of the head's vocabulary."""


@torch.no_grad()
def drafts_after(
    target: torch.nn.Module, head: Head, cached: list[int], pending: int
) -> tuple[np.ndarray, np.ndarray]:
    """The chained steps, from a fresh pass over what is cached."""
    states = head.states_of(target, torch.tensor([cached]))
    after = [*cached[1:], pending]
    tokens, logits = [], []
    for _ in range(DRAFTS):
        state = head(target, states, torch.tensor([after]))[:, -1:]
        logits.append(head.logits(target, state)[0, 0].numpy())
        tokens.append(head.target_id(int(logits[-1].argmax())))
        states = torch.cat([states, state], dim=1)
        after.append(tokens[-1])
    return np.array(tokens), np.array(logits)


@torch.no_grad()
def cases_of(target: torch.nn.Module, head: Head) -> dict[str, np.ndarray]:
    """All prompts of a case."""
    found: dict[str, np.ndarray] = {}
    for length in PROMPTS:
        prompt = [(7 * at + 3 * length) % VOCAB for at in range(length)]
        ids = torch.tensor([prompt])
        greedy = target.generate(
            ids, max_new_tokens=CONTINUED, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, length:].tolist()
        found[f"prompt_{length}"] = np.array(prompt)
        found[f"greedy_{length}"] = np.array(greedy)
        found[f"logits_{length}"] = target(ids).logits[0].numpy()
        for at in range(CONTINUED - 1):
            tokens, logits = drafts_after(target, head, [*prompt, *greedy[:at]], greedy[at])
            found[f"drafts_{length}_{at}"] = tokens
            found[f"draft_logits_{length}_{at}"] = logits
    return found


def causal(length: int) -> torch.Tensor:
    """Additive mask ``(1, 1, length, length)``."""
    return torch.full((length, length), float("-inf")).triu(1)[None, None]

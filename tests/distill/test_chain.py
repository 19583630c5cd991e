"""Parallel chains and walks against a decode loop that keeps caches and drafts one by one."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from mlxcel.distill.evaluation import WIDTHS, accepted_counts, answer_span, summary, walk
from mlxcel.distill.script import ANSWER, OVER, ChatFormat, Scripts
from mlxcel.distill.synthesis import Text, row_seeds, synthesise
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.models.target import Target
from mlxcel.runtime.noise import gumbel, noise_keys
from tests.distill.support import END, chat_model
from tests.models.test_mtp import make_head
from tests.support import tiny

LENGTH = 72


def text_of(model: Any) -> Text:
    form, scripts = ChatFormat.of(model.tokenizer), Scripts()
    temperatures = np.array([0.0, 0.7, 1.0, 1.0], np.float32)
    for row, temperature in enumerate(temperatures):
        scripts.add_answers(form, float(temperature), [[9 + row, 10]])
    return synthesise(
        model.target, scripts, length=LENGTH, seeds=row_seeds(3, 0, 4),
        temperatures=temperatures, ends=[END],
    )  # fmt: skip


def pick(logits: mx.array, ids: np.ndarray, seeds: np.ndarray, heat: float, at: int) -> int:
    """Choice of one token as a request would make it."""
    scores = np.array(logits.astype(mx.float32))
    if heat > 0:
        keys = noise_keys(mx.array(seeds[None]), mx.array([[at]]))
        scores = scores / heat + np.array(gumbel(keys, mx.array(ids)))[0, 0]
    return int(ids[int(np.argmax(scores))])


def decode(
    head: MTPHead, target: Target, text: Text, row: int, width: int
) -> tuple[int, list[int]]:
    """Rounds, and the answer, of a speculative loop with refreshed head caches."""
    first, last = answer_span(text.kinds[row]) or (0, 0)
    tokens = text.tokens[row, : first + 1].tolist()
    seeds, heat = text.seeds[row], float(text.temperatures[row])
    ids = np.arange(tiny.VOCAB, dtype=np.uint32)
    drafted = ids if head.draft_ids is None else np.array(head.draft_ids)
    caches, own = [KVCache() for _ in target.body.layers], KVCache()
    hidden = target.hidden(mx.array([tokens[:-1]]), caches)
    pairs, rounds = (hidden, tokens[1:]), 0
    while len(tokens) <= last:
        start = own.offset
        state = head.forward(head.fuse(pairs[0], mx.array([pairs[1]])), "causal", own)[:, -1:]
        block = [tokens[-1]]
        for k in range(width - 1):
            block.append(pick(head.logits(state)[0, 0], drafted, seeds, heat, len(tokens) + k))
            if k < width - 2:
                state = head.forward(head.fuse(state, mx.array([block[-1:]])), None, own)
        own.trim(own.offset - start - len(pairs[1]))
        hidden = target.hidden(mx.array([block]), caches)
        logits = target.logits(hidden)[0]
        choices = [pick(logits[j], ids, seeds, heat, len(tokens) + j) for j in range(width)]
        taken = 1
        while taken < width and block[taken] == choices[taken - 1]:
            taken += 1
        for cache in caches:
            cache.trim(width - taken)
        pairs = (hidden[:, :taken], choices[:taken])
        tokens += choices[:taken]
        rounds += 1
    return rounds, tokens[first : last + 1]


@pytest.mark.parametrize("make", [tiny.llama_model, tiny.qwen3_model])
@pytest.mark.parametrize("drafts", [None, 40])
def test_walks_are_what_a_decode_loop_does(make: Any, drafts: int | None) -> None:
    model = chat_model(make())
    ids = None if drafts is None else mx.arange(drafts, dtype=mx.uint32)
    head = trained_a_little(model.target, ids)
    text = text_of(model)
    accepted = accepted_counts(head, model.target, text)
    assert accepted.max() >= 1
    for row in range(4):
        first, last = answer_span(text.kinds[row]) or (0, 0)
        for width in (2, 4, 7):
            rounds, answer = decode(head, model.target, text, row, width)
            assert answer == text.tokens[row, first : last + 1].tolist()
            assert rounds == walk(accepted[row], first, last, width).rounds


def trained_a_little(target: Target, ids: mx.array | None) -> MTPHead:
    """A head that accepts something: near the identity on the hidden state."""
    head = make_head(target, draft_ids=ids)
    size = int(head.norm.weight.shape[0])
    head.fc.weight = mx.concatenate([0.3 * mx.eye(size), mx.eye(size)], axis=1)
    head.layers[0].self_attn.o_proj.weight = 0.2 * head.layers[0].self_attn.o_proj.weight
    head.layers[0].mlp.down_proj.weight = 0.2 * head.layers[0].mlp.down_proj.weight
    head.pre_fc_norm_hidden.weight = mx.ones((size,))
    head.norm.weight = mx.ones((size,))
    mx.eval(head.parameters())
    return head


def test_independent_noise_accepts_less() -> None:
    model = chat_model()
    head = trained_a_little(model.target, None)
    text = text_of(model)
    shared = accepted_counts(head, model.target, text)
    apart = accepted_counts(head, model.target, text, independent=True)
    assert (shared[0] == apart[0]).all()
    assert apart[1:].sum() < shared[1:].sum()


def test_walking_by_hand() -> None:
    accepted = np.array([0, 0, 2, 0, 0, 3, 0, 0, 0, 0], np.int32)
    # Answer 3..9: bonus 3 accepts 2, goes to 6, which accepts 3 and ends at 10.
    assert walk(accepted, 3, 9, 4).rounds == 2
    assert walk(accepted, 3, 9, 4).emitted == 6
    assert walk(accepted, 3, 9, 2).rounds == 4
    assert walk(accepted, 9, 9, 4).rounds == 0


def test_summary_counts() -> None:
    kinds = np.full((1, 11), OVER, np.uint8)
    kinds[0, 3:10] = ANSWER
    accepted = np.array([[0, 0, 2, 0, 0, 3, 0, 0, 0, 0]], np.int32)
    figures = summary(accepted, kinds, [0])
    assert figures["tokens"] == 7
    assert figures["emitted"]["4"] == 3.0
    assert figures["positions"][:3] == [0.3333, 1.0, 0.5]
    assert set(figures["emitted"]) == {str(width) for width in WIDTHS}
    assert summary(accepted, kinds, [0], most=4)["tokens"] == 4
    assert summary(accepted, np.zeros_like(kinds), [0])["prompts"] == 0

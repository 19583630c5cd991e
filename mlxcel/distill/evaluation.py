"""What a head is worth: acceptance and tokens per verify pass, exactly as decoding gives them.

Rows are texts that the target wrote itself with known noise, so the target's choices are
known. All chains of all positions are drafted in parallel (`Chain`), then the text is
walked as decoding would: accept the matching drafts, take the target's own token, go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxcel.distill.chain import Chain
from mlxcel.distill.script import ANSWER
from mlxcel.distill.synthesis import Text, noise_scales
from mlxcel.models.drafters.mtp import MTPHead
from mlxcel.models.target import Target
from mlxcel.runtime.noise import gumbel, noise_keys
from mlxcel.runtime.representation import detect_backend

__all__ = ["WIDTHS", "Walk", "accepted_counts", "evaluate", "summary", "walk"]

WIDTHS = tuple(range(2, 9))
DRAFTS = WIDTHS[-1] - 1
# Elements; 256 MiB and 1 GiB in float32.
LOGITS_AT_ONCE = {"cpu": 1 << 26, "metal": 1 << 26, "cuda": 1 << 28}
OTHER_NOISE = 0x5BD1E995


@dataclass(frozen=True, slots=True)
class Walk:
    """One text walked at one width.

    Attributes
    ----------
    rounds : int
        Verify passes.
    emitted : int
        Tokens they gave; the first token of the answer comes from the prompt and is not among
        them.
    """

    rounds: int
    emitted: int


def walk(accepted: npt.NDArray[np.int32], first: int, last: int, width: int) -> Walk:
    """Decode a known text on paper.

    Parameters
    ----------
    accepted : int32 array, (starts,)
        Matching drafts of the chain whose bonus token is token ``start + 1``.
    first, last : int
        Index of the first and of the last token of the answer.
    width : int
        Block width.
    """
    rounds, bonus = 0, first
    while bonus < last:
        bonus += min(int(accepted[bonus - 1]), width - 1) + 1
        rounds += 1
    return Walk(rounds, last - first)


def accepted_counts(
    head: MTPHead,
    target: Target,
    text: Text,
    *,
    independent: bool = False,
    drafts: int = DRAFTS,
) -> npt.NDArray[np.int32]:
    """Matching drafts of the chain from every position.

    Parameters
    ----------
    head : MTPHead
        In the target's activation type.
    target : Target
        Its target.
    text : Text
        Rows that the target wrote.
    independent : bool
        Whether drafts take noise of their own instead of the request's.
    drafts : int
        Longest chain.

    Returns
    -------
    int32 array, (rows, length - 1)
        Entry i belongs to the chain that begins with the pair (hidden state i, token i + 1).
    """
    tokens = mx.array(text.tokens.astype(np.uint32))
    starts = int(tokens.shape[1]) - 1
    ids = head.draft_ids
    ids = mx.arange(target.vocab_size, dtype=mx.uint32) if ids is None else ids
    rows = max(1, LOGITS_AT_ONCE[detect_backend()] // (starts * int(ids.shape[0])))
    seeds = text.seeds ^ np.uint32(OTHER_NOISE) if independent else text.seeds
    parts = []
    for begin in range(0, len(text.tokens), rows):
        part = slice(begin, begin + rows)
        match = _matches(
            head, target, tokens[part], ids, mx.array(seeds[part]), text.temperatures[part], drafts
        )
        parts.append(np.array(mx.sum(mx.cumprod(match, axis=-1), axis=-1)))
    return np.concatenate(parts).astype(np.int32)


def _matches(
    head: MTPHead,
    target: Target,
    tokens: mx.array,
    ids: mx.array,
    seeds: mx.array,
    temperatures: npt.NDArray[np.float32],
    drafts: int,
) -> mx.array:
    """Whether each draft is the text's token, int32 ``(rows, starts, drafts)``."""
    scale, drawn = (x[:, None, None] for x in noise_scales(temperatures))
    starts = int(tokens.shape[1]) - 1
    hidden = target.hidden(tokens, [None] * len(target.body.layers))[:, :-1]
    chain, fed, found = Chain(head), tokens[:, 1:], []
    for k in range(drafts):
        hidden = chain.step(hidden, fed)
        scores = head.logits(hidden).astype(mx.float32) * scale
        if (temperatures > 0).any():
            at = mx.broadcast_to(mx.arange(starts)[None] + k + 2, fed.shape)
            scores = scores + gumbel(noise_keys(seeds, at), ids) * drawn
        fed = ids[mx.argmax(scores, axis=-1)]
        count = max(starts - 1 - k, 0)
        same = (fed[:, :count] == tokens[:, k + 2 :]).astype(mx.int32)
        found.append(mx.pad(same, [(0, 0), (0, starts - count)]))
        mx.eval(hidden, fed, found[-1])
    return mx.stack(found, axis=-1)


def answer_span(kinds: npt.NDArray[np.uint8], most: int | None = None) -> tuple[int, int] | None:
    """Index of the first and the last token of a row's first answer."""
    places = np.flatnonzero(kinds == ANSWER)
    if len(places) < 2:
        return None
    gaps = np.flatnonzero(np.diff(places) > 1)
    end = places[gaps[0]] if len(gaps) else places[-1]
    first = int(places[0])
    return first, int(end) if most is None else min(int(end), first + most - 1)


def summary(
    accepted: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.uint8],
    rows: Sequence[int],
    most: int | None = None,
) -> dict[str, Any]:
    """Figures over some rows.

    Returns
    -------
    dict
        ``tokens``, ``prompts``, ``emitted`` per verify by width, and ``positions``: share of
        drafts accepted at each place, given that all before were.
    """
    spans = [(row, span) for row in rows if (span := answer_span(kinds[row], most)) is not None]
    if not spans:
        return {"prompts": 0, "tokens": 0, "emitted": {}, "positions": []}
    emitted = {}
    for width in WIDTHS:
        walks = [walk(accepted[row], *span, width) for row, span in spans]
        rounds = sum(w.rounds for w in walks)
        emitted[str(width)] = round(sum(w.emitted for w in walks) / max(rounds, 1), 4)
    tried, right = np.zeros(DRAFTS), np.zeros(DRAFTS)
    for row, (first, last) in spans:
        for place in range(DRAFTS):
            counts = accepted[row, first - 1 : max(last - 1 - place, first - 1)]
            tried[place] += np.sum(counts >= place)
            right[place] += np.sum(counts > place)
    return {
        "prompts": len(spans),
        "tokens": int(sum(last - first + 1 for _, (first, last) in spans)),
        "emitted": emitted,
        "positions": [round(float(v), 4) for v in right / np.maximum(tried, 1)],
    }


def evaluate(
    head: MTPHead,
    target: Target,
    text: Text,
    labels: Sequence[str],
    vocabularies: dict[str, mx.array | None],
    *,
    standard_tokens: int = 200,
    tick: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Figures by draft vocabulary, temperature and kind of noise, and of each standard prompt.

    Parameters
    ----------
    head : MTPHead
        In the target's activation type; its draft vocabulary is changed and put back.
    target : Target
        Its target.
    text : Text
        Evaluation rows.
    labels : sequence of str
        What each row is: ``"held-out"``, ``"own"``, ``"plain"``, or a standard prompt's name.
    vocabularies : dict of str to (mx.array or None)
        Draft vocabularies by name.
    standard_tokens : int
        Longest answer counted of a standard prompt.
    tick : callable, optional
        Called with the number of vocabularies done and their total.
    """
    kept = head.draft_ids
    pooled = np.array([label in ("held-out", "own", "plain") for label in labels])
    report: dict[str, Any] = {}
    for done, (name, ids) in enumerate(vocabularies.items()):
        head.restrict(ids)
        shared = accepted_counts(head, target, text)
        sampled = np.flatnonzero(pooled & (text.temperatures > 0))
        apart = shared.copy()
        if len(sampled):
            apart[sampled] = accepted_counts(head, target, _rows(text, sampled), independent=True)
        entry: dict[str, Any] = {"draft_vocab": target.vocab_size if ids is None else len(ids)}
        for temperature in sorted({float(t) for t in text.temperatures}):
            rows = np.flatnonzero(pooled & (text.temperatures == np.float32(temperature))).tolist()
            figures = {"shared": summary(shared, text.kinds, rows)}
            if temperature > 0:
                figures["independent"] = summary(apart, text.kinds, rows)
            entry[f"{temperature:.1f}"] = figures
        for row in np.flatnonzero(~pooled).tolist():
            entry[labels[row]] = summary(shared, text.kinds, [row], standard_tokens)
        report[name] = entry
        if tick is not None:
            tick(done + 1, len(vocabularies))
    head.restrict(kept)
    return report


def _rows(text: Text, index: npt.NDArray[Any]) -> Text:
    return Text(
        tokens=text.tokens[index], kinds=text.kinds[index],
        seeds=text.seeds[index], temperatures=text.temperatures[index],
    )  # fmt: skip

"""Position-keyed Gumbel noise: the same token noise whatever runs.

The noise of a token id depends on the request's seed and the token's position only, so
batch mates, block width, drafter and speculation itself cannot change a sampled output.
``argmax(logits / T + gumbel)`` draws from ``softmax(logits / T)`` (Gumbel 1954; Maddison
et al. 2014, "A* sampling", section 2).

The generator is a counter-based hash: two rounds of the 32-bit finaliser of MurmurHash3
(Appleby, public domain) over the token id, keyed by two words that mix seed and position.
Being a function of the id, it can be evaluated on any subset of the vocabulary.
"""

from __future__ import annotations

import mlx.core as mx

__all__ = ["gumbel", "noise_keys", "seed_words"]

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: neighbouring ids differ in all bits


def seed_words(seed: int) -> tuple[int, int]:
    """Split a 64-bit seed into two 32-bit words, low word first."""
    return seed & 0xFFFFFFFF, seed >> 32


def _mix(h: mx.array) -> mx.array:
    h = h ^ (h >> 16)
    h = h * mx.array(0x85EBCA6B, mx.uint32)
    h = h ^ (h >> 13)
    h = h * mx.array(0xC2B2AE35, mx.uint32)
    return h ^ (h >> 16)


def noise_keys(seeds: mx.array, positions: mx.array) -> mx.array:
    """Key words of each position.

    Parameters
    ----------
    seeds : mx.array
        uint32 ``(rows, 2)``, see `seed_words`.
    positions : mx.array
        ``(rows, width)``, absolute position of the token to be drawn.

    Returns
    -------
    mx.array
        uint32 ``(2, rows, width)``.
    """
    at = positions.astype(mx.uint32)
    low, high = seeds[:, 0:1], seeds[:, 1:2]
    first = _mix(_mix(low + at * mx.array(_GOLDEN, mx.uint32)) ^ high)
    second = _mix(first + mx.array(0x6A09E667, mx.uint32) + _mix(high ^ at))
    return mx.stack([first, second])


def _transform(h: mx.array) -> mx.array:
    """Gumbel noise of uint32 hashes.

    23 bits, so that adding one half is exact in float32: with 24 the largest hash gave a
    uniform of 1, whose noise is infinite and beats every logit.
    """
    uniform = ((h >> 9).astype(mx.float32) + 0.5) * 2.0**-23
    return -mx.log(-mx.log(uniform))


@mx.compile
def _noise(first: mx.array, second: mx.array, ids: mx.array) -> mx.array:
    return _transform(_mix(_mix(ids * mx.array(_GOLDEN, mx.uint32) + first) ^ second))


def gumbel(keys: mx.array, ids: mx.array) -> mx.array:
    """Gumbel(0, 1) noise of token ids.

    Parameters
    ----------
    keys : mx.array
        uint32 ``(2, rows, width)`` from `noise_keys`.
    ids : mx.array
        uint32 ``(vocabulary,)``, the token ids the noise is for, or ``(rows, width,
        vocabulary)`` where they differ.

    Returns
    -------
    mx.array
        float32 ``(rows, width, vocabulary)``, between -2.9 and 16.7.
    """
    return _noise(keys[0][..., None], keys[1][..., None], ids)

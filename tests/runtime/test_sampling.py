"""Sampling: the distribution is the target's, filters and penalties are exact."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.runtime.noise import _transform, gumbel, noise_keys, seed_words
from mlxcel.runtime.sampling import RowSampler
from mlxcel.types import Request, SamplingParams
from tests.support import drafters, tiny
from tests.support.running import run

VOCAB = 8


def reference(logits, params, prompt=(), output=()):
    """Log-probabilities of the filtered distribution, in float64, one row."""
    x = np.array(logits, dtype=np.float64)
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
    for token in set(output):
        x[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    for token, value in params.logit_bias.items():
        x[token] += value
    x = x / params.temperature
    order = np.argsort(-x)
    keep = np.ones(len(x), bool)
    if params.top_k:
        keep[order[params.top_k :]] = False
    p = np.where(keep, np.exp(x - x.max()), 0.0)
    p /= p.sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        keep[order[before >= params.top_p]] = False
        p = np.where(keep, p, 0.0)
    if params.min_p:
        p = np.where(p >= params.min_p * p.max(), p, 0.0)
    return p / p.sum()


CASES = [
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.5),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(temperature=1.5, min_p=0.1),
    SamplingParams(temperature=1.3, top_k=6, top_p=0.8, min_p=0.1, logit_bias={2: 1.0}),
]


def name_of(p):
    return f"T{p.temperature}-{p.top_k}-{p.top_p}-{p.min_p}"


@pytest.mark.parametrize("params", CASES, ids=name_of)
def test_distribution_over_seeds(params):
    """Chi-square of 200,000 draws, one seed each, against the exact distribution."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=VOCAB)
    count = 4000
    counts = np.zeros(VOCAB)
    expected = reference(logits, params)
    for begin in range(0, 200_000, count):
        sampler = RowSampler(VOCAB, [params])
        seeds = np.arange(begin, begin + count, dtype=np.uint32) * 1
        sampler.seeds = mx.array(np.stack([seeds, np.zeros_like(seeds)], axis=1))
        rows = mx.broadcast_to(mx.array(logits.astype(np.float32)), (count, 1, VOCAB))
        where = mx.full((count, 1), 17, dtype=mx.int32)
        tokens = np.array(sampler.choose(rows, mx.zeros((count, 1), mx.uint32), where).tokens)
        counts += np.bincount(tokens[:, 0], minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept], expected[kept] * counts.sum()).pvalue > 1e-3


def test_the_wrong_temperature_would_be_seen():
    """The check above can fail: the same draws do not fit a slightly other temperature."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=VOCAB)
    right = reference(logits, SamplingParams(temperature=1.0))
    wrong = reference(logits, SamplingParams(temperature=1.03))
    draws = right * 200_000
    assert stats.chisquare(draws, wrong * 200_000).pvalue < 1e-3


@pytest.mark.parametrize("drafter", [None, "self"])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"temperature": 1.0},
        {"temperature": 1.5},
        {"temperature": 1.0, "top_p": 0.9},
    ],
    ids=str,
)
def test_second_token_of_a_model(params, drafter):
    """Through the whole engine: P(second | first) over seeds is the model's own softmax."""
    model = tiny.loaded(tiny.llama_model(vocab=VOCAB, scale=0.5))
    settings = Settings(max_rows=64, max_width=4, max_queue=1_000_000)
    engine = Engine(model, drafters.make(drafter, model, settings) if drafter else None, settings)
    prompt = (1, 5, 2)
    seeds = range(1200)
    requests = [
        Request(
            prompt_ids=prompt, params=SamplingParams(max_tokens=2, seed=seed, **params), width=2
        )
        for seed in seeds
    ]
    pairs = [completion.token_ids[:2] for completion in run(engine, *requests)]
    first = max(range(VOCAB), key=lambda token: sum(pair[0] == token for pair in pairs))
    seconds = [pair[1] for pair in pairs if pair[0] == first]
    assert len(seconds) > 200
    logits = model.target.model(mx.array([[*prompt, first]]))[0, -1]
    expected = reference(np.array(logits), SamplingParams(**params))
    counts = np.bincount(seconds, minlength=VOCAB).astype(float)
    assert counts[expected == 0].sum() == 0
    likely = expected * len(seconds) >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum()) * len(seconds)
    if wanted[-1] < 1e-9:
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("width", [1, 3, 6])
def test_penalties_see_the_true_history_inside_a_block(width):
    rng = np.random.default_rng(width)
    params = SamplingParams(
        temperature=0.9, seed=4, repetition_penalty=1.4, presence_penalty=0.5,
        frequency_penalty=0.3, logit_bias={1: 0.7},
    )  # fmt: skip
    prompt, output = [1, 2, 2], [3, 3, 4]
    logits = rng.normal(size=(1, width, VOCAB)).astype(np.float32) * 2
    block = rng.integers(0, VOCAB, size=(1, width)).astype(np.uint32)
    block[0, 0] = output[-1]
    sampler = RowSampler.for_prompt(VOCAB, params, prompt)
    sampler.record(mx.array([output], dtype=mx.uint32), mx.array([3]))
    sampler.scale = sampler.scale * 0 + 1.0
    adjusted = np.array(sampler._adjusted(mx.array(logits), mx.array(block)))
    neutral = SamplingParams(
        temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5,
        frequency_penalty=0.3, logit_bias={1: 0.7},
    )  # fmt: skip
    for at in range(width):
        history = [*output, *block[0, 1 : at + 1].tolist()]
        expected = reference(logits[0, at], neutral, prompt, history)
        found = np.exp(adjusted[0, at] - adjusted[0, at].max())
        np.testing.assert_allclose(found / found.sum(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-9])
def test_tiny_temperatures_are_greedy(temperature):
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, Settings())
    request = Request(prompt_ids=(1, 2), params=SamplingParams(max_tokens=20, temperature=0.0))
    greedy = run(engine, request)[0].token_ids
    for seed in range(5):
        params = SamplingParams(max_tokens=20, temperature=temperature, seed=seed)
        assert run(engine, Request(prompt_ids=(1, 2), params=params))[0].token_ids == greedy


@pytest.mark.parametrize("extra", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_filters_that_keep_one_token_are_greedy(extra):
    model = tiny.loaded(tiny.llama_model())
    engine = Engine(model, None, Settings())
    greedy = run(engine, Request(prompt_ids=(1, 2), params=SamplingParams(max_tokens=20)))[0]
    for seed in range(5):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=seed, **extra)
        again = run(engine, Request(prompt_ids=(1, 2), params=params))[0]
        assert again.token_ids == greedy.token_ids


class TestNoise:
    def draw(self, seeds, positions, vocab=64):
        keys = noise_keys(
            mx.array([seed_words(seed) for seed in seeds], dtype=mx.uint32),
            mx.array(positions, dtype=mx.int32),
        )
        return np.array(gumbel(keys, mx.arange(vocab, dtype=mx.uint32)))

    def test_extreme_hashes_are_finite(self):
        """A uniform that rounds to 1 would beat every logit; at 0 it would make NaN of T = 0."""
        hashes = mx.array([0, 1, 511, 512, 2**32 - 1, 2**32 - 2, 2**32 - 257, 2**31], mx.uint32)
        noise = np.array(_transform(hashes))
        assert np.isfinite(noise).all()
        assert noise.max() == noise[4] < 16.7
        assert noise.min() == noise[0] > -2.9

    def test_improbable_tokens_stay_improbable(self):
        """40 million draws of noise against a gap of 20: none may cross it."""
        ids = mx.arange(49_152, dtype=mx.uint32)
        for seed in range(800):
            keys = noise_keys(mx.array([[seed, 3]], mx.uint32), mx.array([[seed]]))
            assert mx.max(gumbel(keys, ids)).item() < 17.1

    def test_marginal_is_gumbel(self):
        values = self.draw(range(500), [[3, 4, 5, 6]] * 500).ravel()
        assert stats.kstest(values, "gumbel_r").pvalue > 1e-3

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_neighbours_are_independent(self, axis):
        values = self.draw(range(200), [list(range(8))] * 200, vocab=40)
        ranks = stats.gumbel_r.cdf(values)
        moved = np.roll(ranks, 1, axis=axis)
        correlation = np.corrcoef(ranks.ravel(), moved.ravel())[0, 1]
        assert abs(correlation) < 0.02

    def test_high_seed_words_matter(self):
        low, high = self.draw([5, 5 + (1 << 32)], [[1], [1]])
        assert not np.allclose(low, high)

    def test_depends_on_seed_position_and_id_only(self):
        alone = self.draw([9], [[12]])
        together = self.draw([1, 9, 2], [[3, 12], [11, 12], [0, 1]])
        np.testing.assert_array_equal(alone[0, 0], together[1, 1])

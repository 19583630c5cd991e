"""The load benchmark's arithmetic and clients, without a model."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from benchmarks.load_clients import Load, arrivals, closed_loop, open_loop
from benchmarks.load_figures import Trace, figures, percentile, steady_window
from benchmarks.load_prompts import long_prompt, mixed_prompts


def trace(number, stream, sent, arrived, **more):
    made = Trace(number, stream, sent, **more)
    for at, tokens in arrived:
        made.take(at, list(range(tokens)))
    return made


def test_figures_of_two_streams_by_hand():
    traces = [
        trace(0, 0, 0, [(1.0, 1), (2.0, 2), (4.0, 2)], rounds=2, widths=6, proposed=4, accepted=2),
        trace(1, 1, 0, [(2.0, 1), (3.0, 3), (8.0, 1)], rounds=2, widths=4, proposed=2, accepted=2),
    ]  # fmt: skip
    assert steady_window(traces) == (2.0, 4.0)
    found = figures(traces)
    assert found["steady"] == (2 + 3) / 2.0  # what came after 2 s and up to 4 s
    assert found["whole"] == 10 / 8.0
    assert (found["ttft_p50"], found["ttft_p95"]) == (1.0, 2.0)
    assert (found["chunk_p50"], found["chunk_p95"]) == (1.0, 5.0)
    assert (found["token_p50"], found["token_p95"]) == (3.0 / 4, 6.0 / 4)
    assert found["width"] == 10 / 4
    assert found["acceptance"] == 4 / 6


def test_a_run_that_is_never_steady_says_so():
    traces = [trace(0, 0, 0.0, [(1.0, 1), (2.0, 1)]), trace(1, 1, 0.0, [(3.0, 1), (4.0, 1)])]
    assert math.isnan(figures(traces)["steady"])


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.95, 4), (0.0, 1), (1.0, 4)])
def test_percentile(share, value):
    assert percentile([4, 1, 3, 2], share) == value


def test_percentile_of_nothing():
    assert math.isnan(percentile([], 0.5))


class Letters:
    has_chat_template = False

    def encode(self, text):
        return [ord(letter) for letter in text]


def test_mixed_prompts_are_seeded_and_within_bounds():
    texts = ["one text", "another text that is longer"]
    made = mixed_prompts(Letters(), texts, 40, seed=3, shortest=5, longest=30)
    assert made == mixed_prompts(Letters(), texts, 40, seed=3, shortest=5, longest=30)
    assert made != mixed_prompts(Letters(), texts, 40, seed=4, shortest=5, longest=30)
    cuts = [len(prompt) for prompt in made[1::2]]
    assert 5 <= min(cuts) < 12 < 24 < max(cuts) <= 30
    assert made[0] == Letters().encode(texts[0])
    assert len(long_prompt(Letters(), texts, 100)) == 100


@dataclass
class Echo:
    """A model whose answer is its prompt, over and over; counts who is in it."""

    inside: int = 0
    most: int = 0
    error: str | None = None

    def __post_init__(self):
        self.lock = threading.Lock()
        self.asked = []

    def stream(self, prompt, *, speculation="auto", **params):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.asked.append((tuple(prompt), speculation))
        stats = SimpleNamespace(rounds=2, proposed=3, accepted=1, widths=((1, 1), (4, 1)))
        completion = SimpleNamespace(error=self.error, speculation=stats)
        for at in range(params["max_tokens"]):
            last = at == params["max_tokens"] - 1
            if last:
                with self.lock:
                    self.inside -= 1
            yield SimpleNamespace(
                token_ids=(prompt[at % len(prompt)],), completion=completion if last else None
            )


def test_closed_loop_sends_every_request_once_and_never_more_than_the_streams():
    model, prompts = Echo(), [[n, n + 1] for n in range(10)]
    traces = closed_loop(model, Load(prompts, tokens=3, streams=4), "off")
    assert sorted(model.asked) == [((n, n + 1), "off") for n in range(10)]
    assert model.most <= 4
    for one in traces:
        assert one.ids == [one.number, one.number + 1, one.number]
        assert one.stream == one.number % 4
        assert (one.rounds, one.widths, one.accepted) == (2, 5, 1)
        assert one.sent <= one.first <= one.last


def test_open_loop_waits_for_the_hour_and_counts_from_it():
    load = Load([[1]] * 5, tokens=2, streams=1, rate=200.0, seed=2)
    due = arrivals(load)
    assert due[0] == 0.0
    assert due == sorted(due) == arrivals(load)
    traces = open_loop(Echo(), load, "auto")
    began = min(one.sent for one in traces)
    for at, one in zip(due, traces, strict=True):
        assert one.sent - began == pytest.approx(at, abs=1e-6)
        assert one.first >= one.sent
    with pytest.raises(ValueError, match="rate"):
        arrivals(Load([[1]], tokens=2, streams=1))


def test_a_failed_request_fails_the_run():
    with pytest.raises(RuntimeError, match="out of memory"):
        closed_loop(Echo(error="out of memory"), Load([[1]], tokens=2, streams=1), "off")

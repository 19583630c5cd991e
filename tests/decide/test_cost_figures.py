"""Figures of a cost profile, from samples that were made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlxcel.decide.cost_figures import HOST_BOUND, NEAR, derive_costs
from mlxcel.decide.cost_raw import RawCosts, RawPart, RawPass
from mlxcel.errors import ConfigError


def one(stage: str, width: int, tokens: int, seconds: float, **other: Any) -> RawPass:
    values = {"form": "stored", "waited": False, "host": (seconds / 10,)} | other
    return RawPass(stage=stage, width=width, tokens=tokens, seconds=(seconds,), **values)


def part(name: str, seconds: float, **other: Any) -> RawPart:
    values = {"form": "stored", "tokens": 4, "nbytes": 0, "flops": 0.0} | other
    return RawPart(name=name, seconds=(seconds,), **values)


def narrow(form: str = "stored", base: float = 0.01) -> list[RawPass]:
    """A step of 10 ms; every further row below eight costs one more, eight rows cost 1.2."""
    found = [one("classic", 1, 1, base, form=form)]
    for width in (2, 4, 6):
        found.append(one("verify", width, width, width * base, form=form))
        found.append(one("verify", width, 8, 1.2 * base, form=form))
    return [*found, one("verify", 8, 8, 1.2 * base, form=form)]


def costs(passes: list[RawPass], *parts: RawPart, **other: Any) -> RawCosts:
    values = {"backend": "cuda", "layers": 4, "layers_published": 4} | other
    return RawCosts(passes=tuple(passes), parts=parts, **values)


def test_a_narrow_form_is_padded_and_then_wide() -> None:
    figures = derive_costs(costs(narrow()))
    (form,) = figures.forms
    assert (form.verify_tokens, form.wide) == (8, True)
    assert form.verify_steps == pytest.approx(1.2)
    assert figures.padding == {2: 8, 3: 8, 4: 8, 5: 8, 6: 8, 7: 8, 8: 8}
    assert form.fit is not None
    assert form.fit_padded is not None
    assert (form.fit_padded.a, form.fit_padded.b) == pytest.approx((1.2, 0.0))
    assert form.fit.largest_residual > 1  # eight rows are far off the line of the others


def test_costs_are_in_steps_of_the_same_form() -> None:
    figures = derive_costs(costs(narrow() + narrow("dense", 0.02)))
    assert [form.verify_steps for form in figures.forms] == pytest.approx([1.2, 1.2])
    assert [form.classic_ms for form in figures.forms] == pytest.approx([10.0, 20.0])
    assert figures.serve == "stored"


def test_the_form_with_the_cheaper_passes_is_served() -> None:
    figures = derive_costs(costs(narrow("stored", 0.02) + narrow("dense", 0.01)))
    assert figures.serve == "dense"
    assert "dense" in figures.reason


def test_fewer_layers_are_scaled_with_the_head_paid_once() -> None:
    """Two of eight layers: 2 ms of layers make 8 ms, and the head's 1 ms stays 1 ms."""
    passes = [
        one("classic", 1, 1, 0.003),
        one("verify", 4, 4, 0.005),
        one("round", 4, 4, 0.0062),
        one("draft", 1, 1, 0.0004),
        one("head", 1, 1, 0.001),
        one("head", 4, 4, 0.001),
    ]
    figures = derive_costs(costs(passes, layers=2, layers_published=8))
    found = {each.stage: each.milliseconds for each in figures.passes}
    assert found == pytest.approx(
        {"classic": 9.0, "verify": 17.0, "round": 2.2 + 16.0, "draft": 0.4}
    )
    (form,) = figures.forms
    assert form.verify_steps == pytest.approx(17 / 9)


def test_without_the_head_fewer_layers_give_no_figures() -> None:
    with pytest.raises(ConfigError, match="head of stored weights at 1 tokens is missing"):
        derive_costs(costs(narrow(), layers=2))


@pytest.mark.parametrize(
    ("seconds", "nbytes", "flops", "bound"),
    [
        (1.0e-3, 10**9, 1e9, "memory"),
        (1.0e-3, 10**6, 1e12, "arithmetic"),
        (1.01e-3 * NEAR, 10**9, 1e9, "kernels"),
    ],
)
def test_a_part_is_bound_by_what_its_least_time_is_from(
    seconds: float, nbytes: int, flops: float, bound: str
) -> None:
    """A chip of 1 TB/s and 1 PFLOP/s: a gigabyte or a teraflop takes a millisecond."""
    raw = costs(
        narrow(), part("mlp", seconds, nbytes=nbytes, flops=flops),
        bytes_per_second=1e12, flops_per_second=1e15,
    )  # fmt: skip
    (found,) = derive_costs(raw).parts
    assert found.bound == bound
    assert found.least_milliseconds == pytest.approx(1.0)


def test_parts_share_the_pass_and_scale_with_the_layers_but_the_head() -> None:
    passes = [*narrow(), *(one("head", t, t, 0.001) for t in (1, 2, 4, 6, 8))]
    raw = costs(
        passes, part("mlp", 0.003), part("head", 0.001), part("mlp", 0.5, tokens=8),
        layers=1, layers_published=3,
    )  # fmt: skip
    mlp, head, other = derive_costs(raw).parts
    assert (mlp.milliseconds, head.milliseconds) == pytest.approx((9.0, 1.0))
    assert (mlp.share, head.share, other.share) == pytest.approx((0.9, 0.1, 1.0))
    assert (mlp.least_milliseconds, mlp.bound) == (None, "unknown")


def test_what_bounds_names_the_largest_part_and_the_host_where_it_waits() -> None:
    raw = costs(
        narrow(), part("norms", 0.001, tokens=8), part("mlp", 0.009, tokens=8),
    )  # fmt: skip
    (form,) = derive_costs(raw).forms
    assert form.bounds.startswith("mlp 90 %, norms 10 %; all parts alone take 0.83 of the verify")
    slow = [replace(each, host=(each.seconds[0] * (HOST_BOUND + 0.01),)) for each in narrow()]
    (form,) = derive_costs(costs(slow)).forms
    assert form.bounds.startswith("the host, which takes 91 %")
    (form,) = derive_costs(costs(slow, backend="cpu")).forms
    assert "host" not in form.bounds  # it is what computes


def test_waited_passes_do_not_count_as_classic() -> None:
    passes = [*narrow(), one("classic", 1, 1, 0.5, waited=True)]
    (form,) = derive_costs(costs(passes)).forms
    assert form.classic_ms == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda passes: passes[1:], "classic of stored weights"),
        (lambda passes: [p for p in passes if p.width != 4], "no verify of 4"),
        (lambda passes: [replace(passes[0], seconds=(0.0,)), *passes[1:]], "not positive"),
        (lambda passes: [replace(passes[0], seconds=()), *passes[1:]], "not positive"),
    ],
)
def test_what_is_missing_is_named(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        derive_costs(costs(change(narrow())))

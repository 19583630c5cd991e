"""What a sweep says: fit, break-even, best width, ties."""

from __future__ import annotations

import pytest

from mlxcel.bench.protocol import Plan
from mlxcel.decide.bench_sweep import fits_of, sweeps_of
from tests.support.bench_host import SimulatedHost
from tests.support.bench_records import measured_record


def record(widths, prompts=("code",), **host):
    plan = Plan(prompts={name: name for name in prompts}, widths=widths, tokens=241)
    return measured_record(SimulatedHost(**{"cost": 0.8, "slope": 0.15, **host}), plan)


def test_the_fit_is_the_cost_of_the_host():
    made = record((2, 3, 4, 6), prompts=("code", "prose"))
    code, prose = sweeps_of(made.rows)
    assert (code.prompt, prose.prompt) == ("code", "prose")
    assert code.line is not None
    assert code.line.a == pytest.approx(0.8, abs=0.01)
    assert code.line.b == pytest.approx(0.15, abs=0.003)
    assert code.line.largest_residual < 0.01
    assert code.break_even == pytest.approx({k: 0.8 + 0.15 * k for k in (2, 3, 4, 6)}, abs=0.02)
    assert [(fit.a, fit.b) for fit in made.fits] == [
        (pytest.approx(0.8, abs=0.01), pytest.approx(0.15, abs=0.003))
    ] * 2


def test_the_best_width_and_what_ties_with_it():
    # Wide blocks of which a fifth is accepted do not pay: emitted 1 + 0.2 (K - 1).
    [sweep] = sweeps_of(record((2, 4, 8), emitted=0.2, slope=0.3).rows)
    assert (sweep.best, sweep.tied) == (2, ())
    [sweep] = sweeps_of(record((2, 4, 8), emitted=0.9, slope=0.05).rows)
    assert sweep.best == 8
    # Emitted and cost grow alike: the noise decides, and the intervals say so.
    [sweep] = sweeps_of(record((2, 3, 4), emitted=0.5, cost=0.5, slope=0.5, noise=0.02).rows)
    assert sweep.tied


def test_two_widths_have_no_fit():
    made = record((2, 4))
    [sweep] = sweeps_of(made.rows)
    assert sweep.line is None
    assert sweep.break_even == {}
    assert fits_of(made.rows) == made.fits == ()

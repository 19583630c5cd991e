"""The adaptive policy: what it says on hosts made of numbers, and what it keeps."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mlxcel.decide.drift import DriftWatch
from mlxcel.decide.estimate import BurstSample, RoundStages, estimate, weighted_median
from mlxcel.decide.gate import mtp_b1_decision
from mlxcel.decide.policy import (
    GIVE_UP_BURSTS,
    MAX_PROBE_MEANS,
    MAX_SAMPLES,
    MtpPolicy,
    PolicyState,
)
from mlxcel.decide.verdict import UNMEASURED_MAX_AGE, VERDICT_MAX_AGE, Verdict, VerdictKey
from mlxcel.errors import ConfigError, LoadError
from tests.support.simulated import SimulatedHost, burst

KEY = VerdictKey(
    target="sha256:t", drafter="sha256:d", host="cpu:2", width=4, weights="dense", kernel="wide",
    mlx="0.32.4", mlxcel="0.1.0", round_loop=1, numerics="fast",
)  # fmt: skip
OTHERS = {
    "target": "sha256:u", "drafter": "sha256:e", "host": "cpu:4", "width": 8, "weights": "stored",
    "kernel": "narrow", "mlx": "0.33.0", "mlxcel": "0.2.0", "round_loop": 2,
    "numerics": "invariant",
}  # fmt: skip
WIDE = mtp_b1_decision(None, True, True)
NARROW = mtp_b1_decision(None, True, False)
FORCED = {run: mtp_b1_decision("on" if run else "off", True, not run) for run in (True, False)}


def sample(emitted, rounds, round_ms, probe_ms=None, probes=2, width=4):
    return BurstSample(
        width=width, rounds=rounds, emitted=emitted, seconds=rounds * round_ms / 1e3,
        probe_rounds=probes if probe_ms else 0, probe_seconds=(probe_ms or 0) * probes / 1e3,
    )  # fmt: skip


def settle(policy, *samples, now=0.0):
    changed = [policy.observe(each, now) for each in samples]
    assert changed[-1]
    assert not any(changed[:-1])
    return policy.verdict


def serve(host, policy, tokens=60, bursts=80, now=0.0):
    """Serve until the policy settles."""
    for number in range(bursts):
        burst(host, policy, tokens, now)
        if policy.state is PolicyState.SETTLED:
            return number + 1
    raise AssertionError("the policy has not settled")


# -- the published figures -------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_verify", "classic_ms", "round_ms", "speedup", "zone"),
    [
        (2.07, 72, 98, 1.52, "enable"),  # GB10 after the multi-row kernel
        (2.05, 69, 269, 0.53, "decline"),  # GB10 before it
        (2.40, 25.6, 31, 1.98, "enable"),  # M5 Max 12B
        (2.00, 22, 70, 0.63, "decline"),  # M1 Ultra 31B
    ],
)
@pytest.mark.parametrize("static", [WIDE, NARROW])
def test_published_pairings(per_verify, classic_ms, round_ms, speedup, zone, static):
    policy = MtpPolicy(KEY, static)
    each = sample(round(per_verify * 100), 100, round_ms, classic_ms)
    verdict = settle(policy, *[each] * 4)
    assert round(verdict.estimate.speedup, 2) == speedup
    assert verdict.zone == zone
    decision = policy.decide(0.0)
    assert decision.run is (zone == "enable")
    assert f"{speedup:.2f}x" in decision.reason


@pytest.mark.parametrize(
    ("per_verify", "cost", "zone"),
    [(3.0, 2.0, "enable"), (2.0, 2.0, "decline"), (2.99, 2.0, "ambiguous"),
     (2.01, 2.0, "ambiguous"), (1.0, 2.0, "decline"), (4.0, 1.0, "enable")],
)  # fmt: skip
def test_the_limits_are_inclusive_and_between_them_the_gate_decides(per_verify, cost, zone):
    for static in (WIDE, NARROW):
        policy = MtpPolicy(KEY, static)
        each = sample(round(per_verify * 100), 100, 64 * cost, 64)
        assert settle(policy, *[each] * 4).zone == zone
        decision = policy.decide(0.0)
        assert decision.run is (static.run if zone == "ambiguous" else zone == "enable")
        assert (static.reason in decision.reason) is (zone == "ambiguous")


def test_a_cold_first_burst_changes_nothing():
    """GB10: 1.6 s for the first classic step against 74 ms, and the first round compiles."""
    cold = sample(300, 100, 130, 800)
    policy = MtpPolicy(KEY, NARROW)
    verdict = settle(policy, cold, *[sample(300, 100, 111, 74)] * 3)
    assert verdict.estimate.classic_seconds == pytest.approx(0.074)
    assert verdict.estimate.round_seconds == pytest.approx(0.111)


def test_every_part_of_a_round_counts():
    """Leaving the drafter's accept hook out made the estimate of one pairing too rosy."""
    stages = RoundStages(draft=0.8, verify=6.0, absorb=1.2, host=0.1)
    policy = MtpPolicy(KEY, WIDE)
    each = BurstSample.from_stages(
        stages, width=4, rounds=100, emitted=300, probe_rounds=2, probe_seconds=0.08
    )
    found = settle(policy, *[each] * 4).estimate
    assert found.round_seconds == pytest.approx(0.081)
    assert found.speedup == pytest.approx(3.0 * 0.04 / 0.081)


# -- simulated hosts -------------------------------------------------------------------

SIMULATED = {
    "wide": ({"base": 0.83, "slope": 0.17, "acceptance": 0.92}, True),
    "narrow": ({"base": 0.46, "slope": 0.77, "acceptance": 0.8}, False),
    "useless drafter": ({"base": 1.3, "slope": 0.05, "acceptance": 0.02}, False),
}


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("cold", [0.0, 1.6])
@pytest.mark.parametrize("name", SIMULATED)
def test_settles_rightly(name, cold, jitter):
    given, right = SIMULATED[name]
    for seed in range(10):
        host = SimulatedHost(**given, jitter=jitter, cold=cold, seed=seed)
        policy = MtpPolicy(KEY, mtp_b1_decision(None, True, not right))
        assert serve(host, policy) == 4
        assert policy.decide(0.0).run is right
        assert policy.verdict.zone == ("enable" if right else "decline")
        found = policy.verdict.estimate
        assert found.classic_seconds == pytest.approx(host.classic, rel=0.25 if jitter else 1e-9)


@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_tiny_outputs_settle(name, tokens):
    given, _ = SIMULATED[name]
    host = SimulatedHost(**given, jitter=0.05, cold=1.6)
    policy = MtpPolicy(KEY, WIDE)
    assert serve(host, policy, tokens) <= 30
    expected = min(4, tokens)
    right = host.rate(expected) > host.rate(1)
    assert policy.decide(0.0).run is right or policy.verdict.zone == "ambiguous"


def test_outputs_too_short_to_speculate_end_with_the_gate():
    host = SimulatedHost(base=0.8, slope=0.2, acceptance=0.9)
    policy = MtpPolicy(KEY, NARROW)
    assert serve(host, policy, tokens=1) == GIVE_UP_BURSTS
    assert policy.verdict.zone == "unmeasured"
    assert policy.decide(0.0).run is NARROW.run
    assert "could not be measured" in policy.decide(0.0).reason
    assert NARROW.reason in policy.decide(0.0).reason


def test_what_could_not_be_measured_is_tried_again_after_an_hour():
    host = SimulatedHost(base=0.8, slope=0.2, acceptance=0.9)
    policy = MtpPolicy(KEY, NARROW)
    serve(host, policy, tokens=1, now=100.0)
    assert policy.verdict.zone == "unmeasured"
    assert policy.decide(100.0 + UNMEASURED_MAX_AGE).state is PolicyState.SETTLED
    later = policy.decide(101.0 + UNMEASURED_MAX_AGE)
    assert later.state is PolicyState.PROFILING
    assert "over 3600 s old" in later.reason
    serve(host, policy, tokens=60, now=5000.0)
    assert policy.verdict.zone == "enable"
    assert policy.decide(5001.0 + UNMEASURED_MAX_AGE).state is PolicyState.SETTLED


def test_a_busy_pairing_that_is_never_measured_is_left_to_the_gate_nearly_always():
    policy = MtpPolicy(KEY, NARROW)
    profiled = 0
    for second in range(6 * 3600):
        profiled += policy.decide(float(second)).run
        policy.observe(sample(0, 0, 0), float(second))
    assert profiled == 6 * GIVE_UP_BURSTS


def test_memory_is_bounded_while_nothing_settles():
    policy = MtpPolicy(KEY, WIDE)
    for _ in range(GIVE_UP_BURSTS - 1):
        policy.observe(sample(1, 1, 100), 0.0)
    assert policy.state is PolicyState.PROFILING
    assert len(policy._samples) <= MAX_SAMPLES
    for _ in range(40):
        policy = MtpPolicy(KEY, WIDE)
        policy.observe(sample(0, 0, 0, 70), 0.0)
    assert len(policy._probe_means) <= MAX_PROBE_MEANS


def test_zero_round_bursts_do_not_count_but_their_classic_steps_do():
    policy = MtpPolicy(KEY, WIDE)
    for _ in range(5):
        policy.observe(sample(0, 0, 0, 70), 0.0)
    assert policy.snapshot(0.0)["samples_remaining"] == 4
    settle(policy, *[sample(300, 100, 100)] * 4)


def test_two_classic_steps_are_too_few_to_drop_an_outlier():
    policy = MtpPolicy(KEY, WIDE)
    policy.observe(sample(300, 100, 100, 1600), 0.0)
    policy.observe(sample(300, 100, 100, 70), 0.0)
    for _ in range(4):
        assert not policy.observe(sample(300, 100, 100), 0.0)
    assert policy.observe(sample(0, 0, 0, 70), 0.0)
    assert policy.verdict.estimate.classic_seconds == pytest.approx(0.07)


def test_rounds_of_a_wider_block_do_not_count():
    policy = MtpPolicy(KEY, WIDE)
    for _ in range(8):
        policy.observe(sample(300, 100, 100, 70, width=8), 0.0)
    assert policy.state is PolicyState.PROFILING


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(0, 0), (1, 1), (2, 2), (5, 2), (6, 2), (23, 2), (24, 3), (50, 6), (64, 8), (1000, 8)],
)
def test_probe_rounds_of_the_first_burst(budget, expected):
    assert MtpPolicy(KEY, WIDE).probe_rounds(budget) == expected


def test_short_bursts_take_turns():
    policy = MtpPolicy(KEY, WIDE)
    policy.observe(sample(0, 0, 0, 70), 0.0)
    assert policy.probe_rounds(3) == 0
    policy.observe(sample(2, 1, 100), 0.0)
    assert policy.probe_rounds(3) == 2


# -- drift and age ---------------------------------------------------------------------


def test_collapse_of_acceptance_is_measured_again():
    host = SimulatedHost(base=0.83, slope=0.17, acceptance=0.92, jitter=0.05)
    policy = MtpPolicy(KEY, WIDE)
    serve(host, policy)
    assert policy.decide(0.0).run
    host.acceptance = 0.05
    bursts = 0
    while policy.state is PolicyState.SETTLED:
        burst(host, policy, 60)
        bursts += 1
        assert bursts <= 16
    assert "emitted per verify" in policy.decide(0.0).reason
    assert policy.to_json() is None
    serve(host, policy)
    assert not policy.decide(0.0).run


def test_a_declined_pairing_is_watched_by_its_classic_step():
    host = SimulatedHost(base=0.46, slope=0.77, acceptance=0.8, jitter=0.05)
    policy = MtpPolicy(KEY, WIDE)
    serve(host, policy)
    assert not policy.decide(0.0).run
    host.classic *= 2
    host.slope /= 8
    bursts = 0
    while policy.state is PolicyState.SETTLED:
        burst(host, policy, 60)
        bursts += 1
        assert bursts <= 16
    assert "width 1" in policy.decide(0.0).reason
    serve(host, policy)
    assert policy.decide(0.0).run


def test_a_steady_host_is_left_alone():
    for seed in range(5):
        host = SimulatedHost(base=0.83, slope=0.17, acceptance=0.8, jitter=0.15, seed=seed)
        policy = MtpPolicy(KEY, WIDE)
        serve(host, policy)
        for _ in range(200):
            burst(host, policy, 60)
            assert policy.state is PolicyState.SETTLED


def test_prompts_of_different_acceptance_are_no_drift():
    """3.99 emitted per verify for an enumeration, 2.96 for prose, in turn."""
    policy = MtpPolicy(KEY, WIDE)
    kinds = [sample(399, 100, 48, 32), sample(296, 100, 48, 32)]
    settle(policy, *kinds, *kinds)
    for number in range(64):
        assert not policy.observe(kinds[number % 2], 0.0)


def test_confirmed_drift_waits_longer_each_time():
    host = SimulatedHost(base=0.83, slope=0.17, acceptance=0.92)
    policy = MtpPolicy(KEY, WIDE)
    serve(host, policy)
    waits = []
    for _ in range(6):
        host.classic = 0.074 if host.classic > 0.1 else 0.148
        bursts = 0
        while policy.state is PolicyState.SETTLED:
            burst(host, policy, 60)
            bursts += 1
        waits.append(bursts)
        serve(host, policy)
    assert waits == sorted(waits)
    assert waits[-1] == 64


def test_a_width_that_the_controller_chose_later_is_no_drift():
    watch = DriftWatch({4: (3.0, 0.1)})
    for _ in range(40):
        assert watch.observe(6, 20, 100, 4.0) == ""
    found = [watch.observe(6, 20, 100, 8.0) for _ in range(16)]
    assert "width 6" in next(filter(None, found))


@pytest.mark.parametrize("static", [WIDE, NARROW])
def test_an_old_verdict_is_measured_again(static):
    policy = MtpPolicy(KEY, static)
    settle(policy, *[sample(200, 100, 140, 70)] * 4, now=1000.0)
    assert policy.decide(1000.0 + VERDICT_MAX_AGE).state is PolicyState.SETTLED
    decision = policy.decide(1001.0 + VERDICT_MAX_AGE)
    assert (decision.run, decision.state) == (True, PolicyState.PROFILING)
    assert "old" in decision.reason


# -- forced and vetoed -----------------------------------------------------------------


@pytest.mark.parametrize("run", [True, False])
def test_forced_is_shown_as_forced_and_never_measures(run):
    policy = MtpPolicy(KEY, FORCED[run])
    assert policy.probe_rounds(100) == 0
    for _ in range(10):
        assert not policy.observe(sample(400, 100, 50, 70), 0.0)
    decision = policy.decide(1e9)
    assert (decision.run, decision.state) == (run, PolicyState.FORCED)
    assert "MLXCEL_ENABLE_MTP_B1" in decision.reason
    assert "nothing was measured" in decision.reason
    policy.restore(stored(), 0.0)
    assert policy.to_json() is None
    assert policy.snapshot(0.0)["speedup"] is None


@pytest.mark.parametrize("static", [WIDE, NARROW, FORCED[True], FORCED[False]])
def test_a_veto_outranks_everything_and_has_its_own_state(static):
    policy = MtpPolicy(KEY, static)
    for step in range(3):
        policy.veto = "the block diverges at position 2"
        decision = policy.decide(0.0)
        assert (decision.run, decision.state) == (False, PolicyState.EXACTNESS_DECLINED)
        assert decision.state == "exactness_declined"
        assert "position 2" in decision.reason
        assert policy.probe_rounds(100) == 0
        assert not policy.observe(sample(400, 100, 50, 70), 0.0)
        policy.veto = ""
        if static.source != "override":
            expected = PolicyState.SETTLED if step else PolicyState.PROFILING
            assert policy.state is expected
            if step == 0:
                settle(policy, *[sample(400, 100, 100, 70)] * 4)


def test_profiling_says_so():
    policy = MtpPolicy(KEY, NARROW)
    policy.observe(sample(300, 100, 100, 70), 0.0)
    decision = policy.decide(0.0)
    assert decision.run
    assert "1 of 4 bursts" in decision.reason
    assert policy.snapshot(0.0)["samples_remaining"] == 3


# -- keys and files --------------------------------------------------------------------


def test_the_digest_is_stable():
    assert KEY.digest == "4bdb807574caabb669be5b304f67c913"
    assert dataclasses.replace(KEY).digest == KEY.digest


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_of_the_key_changes_the_digest(name):
    other = dataclasses.replace(KEY, **{name: OTHERS[name]})
    assert other.digest != KEY.digest
    assert KEY.differences(other).startswith(f"{name} ")
    with pytest.raises(LoadError, match=name):
        MtpPolicy(other, WIDE).restore(stored(), 0.0)


def test_all_fields_are_covered():
    assert OTHERS.keys() == {field.name for field in dataclasses.fields(VerdictKey)}


@pytest.mark.parametrize(
    ("name", "value"), [("target", ""), ("host", " "), ("mlx", None), ("width", 0), ("width", True),
                        ("width", 4.0), ("round_loop", 0)],
)  # fmt: skip
def test_a_key_with_a_hole_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(KEY, **{name: value})


def stored(zone="enable", now=0.0):
    policy = MtpPolicy(KEY, WIDE)
    per_round = {"enable": 80, "ambiguous": 160, "decline": 400}[zone]
    settle(policy, *[sample(300, 100, per_round, 70)] * 4, now=now)
    return policy.to_json()


@pytest.mark.parametrize("zone", ["enable", "ambiguous", "decline"])
def test_a_verdict_survives_a_restart(zone):
    for static in (WIDE, NARROW):
        policy = MtpPolicy(KEY, static)
        policy.restore(stored(zone, 50.0), 60.0)
        decision = policy.decide(60.0)
        assert decision.state is PolicyState.SETTLED
        assert decision.run is (static.run if zone == "ambiguous" else zone == "enable")
        assert json.loads(policy.to_json()) == json.loads(stored(zone, 50.0))


def test_an_unmeasured_verdict_survives_too():
    text = Verdict(zone="unmeasured", estimate=None, settled_at=5.0).to_json(KEY)
    policy = MtpPolicy(KEY, NARROW)
    policy.restore(text, 5.0)
    assert not policy.decide(5.0).run


def edited(path, value):
    record = json.loads(stored())
    inner = record
    for name in path[:-1]:
        inner = inner[name]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["version"], 1, "version 1"),
        (["version"], "1", "version"),
        (["version"], KeyError, "version"),
        (["extra"], 1, "extra"),
        (["key", "extra"], 1, "extra"),
        (["key", "width"], KeyError, "width"),
        (["key"], [], "key"),
        (["names"], KeyError, "names"),
        (["names", "target"], 3, "target"),
        (["names", "extra"], None, "extra"),
        (["verdict"], None, "verdict"),
        (["verdict", "zone"], "perhaps", "zone"),
        (["verdict", "zone"], "decline", "contradicts"),
        (["verdict", "zone"], "unmeasured", "contradicts"),
        (["verdict", "estimate"], None, "contradicts"),
        (["verdict", "estimate", "rounds"], 1.5, "rounds"),
        (["verdict", "estimate", "rounds"], True, "rounds"),
        (["verdict", "estimate", "classic_seconds"], 0, "classic_seconds"),
        (["verdict", "estimate", "classic_seconds"], float("nan"), "classic_seconds"),
        (["verdict", "estimate", "round_seconds"], float("inf"), "round_seconds"),
        (["verdict", "estimate", "emitted_per_verify"], "3", "emitted_per_verify"),
        (["verdict", "estimate", "extra"], 1, "extra"),
        (["verdict", "settled_at"], -1, "settled_at"),
        (["verdict", "settled_at"], 1e9, "future"),
    ],
)
def test_a_file_that_is_not_right_is_refused_and_changes_nothing(path, value, words):
    policy = MtpPolicy(KEY, WIDE)
    with pytest.raises(LoadError, match=words):
        policy.restore(edited(path, value), 0.0)
    assert policy.state is PolicyState.PROFILING


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "{}", "[" * 100_000])
def test_no_json_is_refused(text):
    with pytest.raises(LoadError):
        MtpPolicy(KEY, WIDE).restore(text, 0.0)


def test_an_old_file_is_refused():
    with pytest.raises(LoadError, match="old"):
        MtpPolicy(KEY, WIDE).restore(stored(), VERDICT_MAX_AGE + 1)


# -- records ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": -1}, "rounds"),
        ({"rounds": 1.0}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"emitted": 5}, "emitted"),
        ({"emitted": 401}, "emitted"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": -1.0}, "seconds"),
        ({"probe_seconds": float("inf")}, "probe_seconds"),
        ({"accepted": 3, "proposed": 2}, "accepted"),
    ],
)
def test_samples_that_cannot_be(changes, words):
    given = {"width": 4, "rounds": 100, "emitted": 300, "seconds": 1.0}
    with pytest.raises(ConfigError, match=words):
        BurstSample(**(given | changes))


def test_no_estimate_without_figures():
    good = sample(300, 100, 100, 70)
    assert estimate([good], []) is None
    assert estimate([], [0.07]) is None
    assert estimate([good], [0.0, float("nan"), float("inf")]) is None
    assert estimate([sample(3, 1, 0)], [0.07]) is None


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 1)], 1),
        ([(1, 1), (3, 1)], 2),
        ([(5, 1), (1, 1), (3, 1)], 3),
        ([(1, 10), (100, 1)], 1),
        ([(1, 1), (100, 0)], 1),
    ],
)
def test_weighted_median(pairs, expected):
    assert weighted_median(pairs) == expected


def test_weighted_median_of_nothing():
    with pytest.raises(ConfigError):
        weighted_median([(1.0, 0.0)])

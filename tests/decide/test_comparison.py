"""Comparing two records: refused where they were not taken alike, else a verdict for each row."""

from __future__ import annotations

import copy

import pytest

from mlxcel.decide.comparable import mismatches
from mlxcel.decide.comparison import compare
from mlxcel.errors import ConfigError
from tests.support.measured_values import measured_value

ONE = measured_value("one", seed=1)


def changed(path, value):
    """The record with one field changed, by its path."""
    other = copy.deepcopy(measured_value("two", seed=2))
    inner = other
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return other


def verdicts(first, second, **how):
    return {(c.prompt, c.arm): c.verdict for c in compare(first, second, **how)}


# -- what must not differ -----------------------------------------------------------------


def test_two_campaigns_taken_alike_can_be_compared():
    assert mismatches(ONE, measured_value("two", seed=2)) == ()


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("host", "chip"), "NVIDIA H200", "host: CPU Intel Xeon against NVIDIA H200"),
        (("provenance", "memory_bytes"), 2**33, "memory: 17179869184 against 8589934592"),
        (("provenance", "system"), "macOS 26", "system: Debian 12 (x86_64) against macOS 26"),
        (("provenance", "python"), "3.12", "python: 3.11.9 against 3.12"),
        (("provenance", "blas"), "reference", "blas: OpenBLAS against reference"),
        (("provenance", "round_loop"), 2, "round_loop: 1 against 2"),
        (("provenance", "versions", "mlx"), "0.33", "versions.mlx: 0.32.4 against 0.33"),
        (("provenance", "kernel", "form"), "dense", "kernel.form: stored against dense"),
        (("provenance", "kernel", "verdict"), "narrow", "kernel.verdict: wide against narrow"),
        (("provenance", "kernel"), None, "kernel.form: stored against (not there)"),
        (("provenance", "exactness", "level"), "token", "exactness: bitwise against token"),
        (
            ("provenance", "environment"),
            {"MLXCEL_NUMERICS": "invariant"},
            "environment.MLXCEL_NUMERICS: (not there) against invariant",
        ),
        (("protocol",), "unguarded", "protocol: guarded against unguarded"),
        (("pairing", "drafter"), "other", "pairing.drafter: demo against other"),
        (
            ("pairing", "drafter_quantization"),
            "4-bit",
            "pairing.drafter_quantization: null against 4-bit",
        ),
        (("rows", 0, "prompt"), "list", "prompts: code, prose against list, prose"),
        (("rows", 0, "tokens"), 300, "tokens: 120 against 120, 300"),
        (("rows", 1, "requested_width"), 5, "widths: 4 against 4, 5"),
        (
            ("rows", 1, "effective_width"),
            3,
            "effective width of prose, 120 tokens, width 4: 4 against 3",
        ),
    ],
)
def test_every_difference_is_named(path, value, text):
    found = mismatches(ONE, changed(path, value))
    assert str(found[0]) == text
    assert len(found) == (2 if path[-1] == "kernel" else 1)


def test_rows_that_only_one_has_are_named():
    two = changed(("rows", 0, "prompt"), "prose")
    two["rows"][0]["tokens"] = 300
    one = copy.deepcopy(ONE)
    one["rows"][0] |= {"prompt": "prose", "requested_width": 5}
    one["rows"][1]["tokens"] = two["rows"][1]["tokens"] = 300
    one["rows"][0]["tokens"] = 120
    two["rows"][1]["tokens"], two["rows"][1]["requested_width"] = 120, 4
    two["rows"][0]["requested_width"] = 5
    [found] = mismatches(one, two)
    assert str(found) == "rows: prose/120/5, prose/300/4 against prose/300/5, prose/120/4"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("provenance", "commit"), "f" * 40),
        (("provenance", "dirty"), True),
        (("provenance", "environment"), {"MLXCEL_CACHE_DIR": "cache"}),
        (("provenance", "versions", "mlxcel"), "0.2.0"),
        (("provenance", "memory_bytes"), 16 * 2**30 - 2**20),
        (("provenance", "started"), "2026-12-01T00:00:00Z"),
    ],
)
def test_what_a_comparison_is_about_may_differ(path, value):
    assert mismatches(ONE, changed(path, value)) == ()


def test_a_field_that_is_varied_may_differ_and_must():
    other = changed(("provenance", "versions", "mlx"), "0.33")
    assert mismatches(ONE, other, ["versions.mlx"]) == ()
    with pytest.raises(ConfigError, match=r"do not differ in 'blas'; .*: versions\.mlx"):
        mismatches(ONE, other, ["blas"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"provenance": None}, "two has no provenance: only records measured by"),
        ({"rows": []}, "two holds times of passes only"),
    ],
)
def test_records_that_cannot_be_compared(change, message):
    with pytest.raises(ConfigError, match=message):
        mismatches(ONE, measured_value("two") | change)


# -- verdicts -----------------------------------------------------------------------------


def test_the_same_speed_is_undecided():
    found = compare(ONE, measured_value("two", seed=2))
    assert [(c.prompt, c.arm) for c in found] == [
        ("code", "classic"), ("code", "speculative"), ("prose", "classic"),
        ("prose", "speculative"),
    ]  # fmt: skip
    assert {c.verdict for c in found} == {"undecided"}
    assert all(abs(c.ratio - 1) < 0.01 and c.n == (6, 6) for c in found)


@pytest.mark.parametrize(("speed", "verdict"), [(42.0, "faster"), (38.0, "slower")])
def test_one_arm_that_changes_by_five_percent_is_found(speed, verdict):
    found = compare(ONE, measured_value("two", speculative=speed, seed=2))
    arms = {(c.arm, c.verdict) for c in found}
    assert arms == {("classic", "undecided"), ("speculative", verdict)}
    for change in found:
        if change.arm == "speculative":
            assert change.interval is not None
            low, high = change.interval
            assert low < change.ratio < high
            assert change.ratio == pytest.approx(speed / 40, abs=0.01)
            assert change.p == pytest.approx(2 / 924)
            assert change.why.startswith("+" if verdict == "faster" else "-")


def test_widths_that_share_their_classic_runs_compare_them_once():
    one, two = measured_value("one", prompts=("code",)), measured_value("two", prompts=("code",))
    for record in (one, two):
        wider = copy.deepcopy(record["rows"][0]) | {"requested_width": 5}
        for block in wider["raw"]["pairs"]:
            for run in block:
                run["seconds"] *= 0.9 if run["arm"] == "speculative" else 1
        record["rows"].append(wider)
    found = [(c.width, c.arm) for c in compare(one, two)]
    assert found == [(4, "classic"), (4, "speculative"), (5, "speculative")]


def test_swapping_the_records_turns_every_verdict():
    two = measured_value("two", speculative=43, classic=19, seed=3)
    turned = {"faster": "slower", "slower": "faster"}
    assert verdicts(two, ONE) == {key: turned[word] for key, word in verdicts(ONE, two).items()}


def test_a_sure_but_small_difference_is_none():
    """The samples do not overlap, yet 0.8 % is what hosts drift by on their own."""
    one = measured_value("one", row={"noise": 0.001})
    two = measured_value("two", speculative=40.32, row={"noise": 0.001}, seed=2)
    [found, _] = [c for c in compare(one, two) if c.arm == "speculative"]
    assert (found.verdict, found.p < 0.01) == ("undecided", True)
    assert found.why == f"{100 * (found.ratio - 1):+.1f} % is below the 1.0 % that are asked for"
    assert verdicts(one, two, least_effect=0.005)["code", "speculative"] == "faster"


def test_the_null_arm_raises_what_is_asked_for():
    """A host whose classic speed moves by 3 % within a row cannot show a difference of 2 %."""
    two = measured_value("two", speculative=40.8, seed=2, row={"drift": -0.03})
    [found, _] = [c for c in compare(ONE, two) if c.arm == "speculative"]
    assert (found.verdict, found.least_effect) == ("undecided", pytest.approx(0.03))
    steady = measured_value("two", speculative=40.8, seed=2)
    assert verdicts(ONE, steady)["code", "speculative"] == "faster"


def test_too_few_samples_say_how_many_would_do():
    one, two = (measured_value(n, speculative=s, blocks=1) for n, s in (("a", 40), ("b", 60)))
    found = compare(one, two)
    assert {c.verdict for c in found} == {"undecided"}
    assert "2 and 2 samples cannot give p below 0.33" in found[0].why
    assert found[0].interval is None


def test_a_row_that_is_not_publishable_is_undecided_and_says_why():
    bad = {"publishable": False, "reasons": ["spread of the classic arm 9.0 %"]}
    two = measured_value("two", speculative=50, seed=2, row=bad)
    [found, _] = [c for c in compare(ONE, two) if c.arm == "speculative"]
    assert (found.verdict, found.why) == (
        "undecided", "would be faster, but a row is not publishable"
    )  # fmt: skip
    assert found.caveats == ("second record: spread of the classic arm 9.0 %",)


def test_other_answers_are_a_caveat():
    two = measured_value("two", seed=2, row={"text": "another answer"})
    assert all("answers are other ones" in c.caveats[0] for c in compare(ONE, two))
    assert all(c.caveats == () for c in compare(ONE, measured_value("two", seed=2)))

"""Apple chips by name and by Metal architecture."""

from __future__ import annotations

import pytest

from mlxcel.decide.chips import GATE_TABLE, GENERATIONS, identify, parse_architecture

CHIPS = [
    ("Apple M1", "applegpu_g13g", 13, False, 68.25, "inferred"),
    ("Apple M1 Pro", "applegpu_g13s", 13, False, 200, "inferred"),
    ("Apple M1 Max", "applegpu_g13s", 13, False, 400, "inferred"),
    ("Apple M1 Ultra", "applegpu_g13d", 13, False, 800, "measured"),
    ("Apple M2", "applegpu_g14g", 14, False, 100, "inferred"),
    ("Apple M2 Pro", "applegpu_g14s", 14, False, 200, "inferred"),
    ("Apple M2 Max", "applegpu_g14s", 14, False, 400, "inferred"),
    ("Apple M2 Ultra", "applegpu_g14d", 14, False, 800, "inferred"),
    ("Apple M3", "applegpu_g15g", 15, True, 100, "inferred"),
    ("Apple M3 Pro", "applegpu_g15g", 15, True, 150, "inferred"),
    ("Apple M3 Max", "applegpu_g15s", 15, True, 400, "inferred"),
    ("Apple M3 Ultra", "applegpu_g15d", 15, True, 819, "measured"),
    ("Apple M4", "applegpu_g16g", 16, True, 120, "inferred"),
    ("Apple M4 Pro", "applegpu_g16g", 16, True, 273, "inferred"),
    ("Apple M4 Max", "applegpu_g16s", 16, True, 546, "inferred"),
    ("Apple M5", "applegpu_g17g", 17, True, 153, "inferred"),
    ("Apple M5 Pro", "applegpu_g17g", 17, True, 307, "inferred"),
    ("Apple M5 Max", "applegpu_g17s", 17, True, 614, "measured"),
]


@pytest.mark.parametrize("architecture", [True, False])
@pytest.mark.parametrize(("brand", "metal", "gpu", "wide", "bandwidth", "basis"), CHIPS)
def test_every_chip(brand, metal, gpu, wide, bandwidth, basis, architecture):
    chip = identify(brand, architecture=metal if architecture else None, os_version="26.2")
    assert chip.status == "known"
    assert (chip.gpu, chip.wide, chip.bandwidth, chip.basis) == (gpu, wide, bandwidth, basis)
    assert f"Apple {chip.generation} {chip.variant}".strip() == brand
    assert chip.neural_accelerator is (chip.generation == "M5")
    assert not chip.must_measure
    assert str(gpu) in chip.reason
    assert ("measured:" in chip.reason) is (basis == "measured")


def test_measured_and_inferred_generations():
    basis = {name: entry.basis for name, entry in GENERATIONS.items()}
    assert basis == {
        "M1": "measured", "M2": "inferred", "M3": "measured", "M4": "inferred", "M5": "measured",
    }  # fmt: skip
    dates = {"M1": "2026-09-04", "M3": "2026-08-20", "M5": "2026-09-06"}
    assert all(day in GENERATIONS[name].source for name, day in dates.items())
    assert all("no measurement" in GENERATIONS[name].source for name in ("M2", "M4"))


def test_the_table_for_the_evidence():
    assert dict(GATE_TABLE) == {"M1": False, "M2": False, "M3": True, "M4": True, "M5": True}
    assert all(entry.wide is (entry.gpu >= 15) for entry in GENERATIONS.values())
    with pytest.raises(TypeError):
        GATE_TABLE["M1"] = True


@pytest.mark.parametrize(
    ("brand", "metal"),
    [
        ("Apple M6", None),
        ("Apple M6 Max", "applegpu_g18s"),
        ("Apple M10 Ultra", None),
        ("Apple M5 Ultra", "applegpu_g18d"),
        (None, "applegpu_g18g"),
    ],
)
def test_a_future_chip_is_measured(brand, metal):
    chip = identify(brand, architecture=metal, os_version="27.0")
    assert (chip.status, chip.wide, chip.must_measure) == ("newer", None, True)
    assert chip.basis == "unmeasured"
    assert "newer than the table" in chip.reason
    assert "measure" in chip.reason


@pytest.mark.parametrize(
    ("brand", "virtual"),
    [
        ("Apple processor", False),
        ("VirtualApple @ 2.50GHz", False),
        ("Apple M1 (Virtual)", False),
        ("Apple M3 Ultra", True),
        (None, True),
    ],
)
def test_a_virtual_machine_is_measured(brand, virtual):
    chip = identify(brand, architecture="applegpu_g15d", virtual=virtual)
    assert (chip.status, chip.wide, chip.gpu) == ("virtual", None, 15)
    assert "virtual" in chip.reason


@pytest.mark.parametrize(
    "brand",
    [None, "", "  ", "Intel(R) Core(TM) i9", "NVIDIA GB10", "Apple", "Apple M", "Apple Mx",
     "Apple M1x", "M3 Ultra", "Apple M0", "Apple A15", "x" * 300],
)  # fmt: skip
def test_what_is_not_recognised_is_measured(brand):
    chip = identify(brand)
    assert (chip.status, chip.must_measure) == ("unknown", True)
    assert chip.name
    assert "measure" in chip.reason


@pytest.mark.parametrize("brand", ["apple m3 ultra", "  Apple  M3   Ultra ", "APPLE M3 ULTRA"])
def test_case_and_blanks(brand):
    assert identify(brand).wide is True
    assert identify(brand).variant == "Ultra"


def test_a_new_variant_of_a_known_generation():
    chip = identify("Apple M4 Extreme")
    assert (chip.status, chip.wide, chip.basis) == ("known", True, "inferred")
    assert chip.bandwidth is None
    assert identify("Apple M5 Ultra").bandwidth is None


@pytest.mark.parametrize(
    ("metal", "generation", "variant", "wide"),
    [
        ("applegpu_g13d", "M1", "Ultra", False),
        ("applegpu_g14s", "M2", "Max", False),
        ("applegpu_g15g", "M3", "", True),
        ("applegpu_g16p", "", "", True),
    ],
)
def test_by_architecture_alone(metal, generation, variant, wide):
    chip = identify(None, architecture=metal)
    assert (chip.generation, chip.variant, chip.wide) == (generation, variant, wide)
    assert chip.name == metal


def test_a_base_or_pro_letter_names_no_bandwidth():
    assert identify(None, architecture="applegpu_g15g").bandwidth is None
    assert identify("Apple A18 Pro", architecture="applegpu_g16p").basis == "inferred"


def test_name_and_architecture_that_disagree():
    chip = identify("Apple M3 Ultra", architecture="applegpu_g13d")
    assert chip.must_measure
    assert "15" in chip.reason
    assert "13" in chip.reason


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("applegpu_g13d", (13, "d")),
        (" applegpu_g17s\n", (17, "s")),
        ("applegpu_g5p", None),
        ("applegpu_g133d", None),
        ("applegpu_g13", None),
        ("applegpu_g１３d", None),
        ("sm_121", None),
        ("", None),
        (None, None),
    ],
)
def test_architecture_names(text, found):
    assert parse_architecture(text) == found


@pytest.mark.parametrize(
    ("version", "usable"),
    [("26.2", True), ("26.3.1", True), ("27", True), ("100.0", True), ("26.1", False),
     ("26", False), ("15.6", False), ("", False), (None, False), ("beta", False)],
)  # fmt: skip
def test_neural_accelerator_needs_the_system(version, usable):
    assert identify("Apple M5 Max", os_version=version).neural_accelerator is usable
    assert identify("Apple M4 Max", os_version=version).neural_accelerator is False

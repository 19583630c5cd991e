"""What ``mlxcel gate explain`` finds out about this host: its chip and its kernels."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mlxcel.cli import gate_host, main
from mlxcel.decide.chips import identify
from mlxcel.hardware.host import Sources
from tests.support.checkpoints import write_tiny_llama


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path))
    return tmp_path


def sources(metal=False, cuda=False, name="", architecture="", **values):
    """A host whose MLX and system say such things."""
    mx = SimpleNamespace(
        metal=SimpleNamespace(is_available=lambda: metal),
        cuda=SimpleNamespace(is_available=lambda: cuda),
        device_info=lambda: {"device_name": name, "architecture": architecture},
    )
    return Sources(
        system="darwin" if metal else "linux", machine="arm64", mlx=lambda: mx,
        run=lambda words: values.get(words[-1].replace(".", "_")),
        read=lambda path: "model name : Apple M3 Ultra\n",
    )  # fmt: skip


def test_the_chip_of_a_mac():
    brand, system = "Apple M3 Ultra", "26.2"
    mac = sources(metal=True, architecture="applegpu_g15d", machdep_cpu_brand_string=brand,
                  kern_osproductversion=system, hw_memsize="1024")  # fmt: skip
    assert gate_host.this_chip(mac) == identify(
        brand, architecture="applegpu_g15d", os_version=system
    )


def test_the_chip_of_a_virtual_mac_is_measured():
    mac = sources(metal=True, machdep_cpu_brand_string="Apple M3", kern_hv_vmm_present="1",
                  hw_memsize="1024")  # fmt: skip
    assert gate_host.this_chip(mac).status == "virtual"


def test_the_chip_of_other_backends_is_never_one_of_the_table():
    assert gate_host.this_chip(sources(cuda=True, name="NVIDIA H200")).name == "NVIDIA H200"
    chip = gate_host.this_chip(sources())
    assert (chip.name, chip.status, chip.wide) == ("CPU Apple M3 Ultra", "unknown", None)


@pytest.mark.parametrize(
    ("bits", "weights", "form"),
    [(4, "stored", "stored"), (4, "dense", "dense"), (None, "stored", "dense")],
)
def test_the_kernel_profile_of_a_target_decides_by_the_form_that_is_served(
    cache, tmp_path, monkeypatch, bits, weights, form
):
    folder = write_tiny_llama(tmp_path / "tiny", bits=bits)
    monkeypatch.setenv("MLXCEL_WEIGHTS", weights)
    words = ["gate", "explain", "--probe", "--target", str(folder), "--json"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    steps = {step["name"]: step for step in found["steps"]}
    assert f"{form} is " in steps["projections"]["reason"]
    wide = form == "dense"
    assert steps["projections"]["outcome"] == f"{'wide' if wide else 'narrow'} (kernel profile)"
    assert (found["decision"]["run"], found["decision"]["source"]) == (wide, "host")
    assert len(list((cache / "kernels").iterdir())) == 1

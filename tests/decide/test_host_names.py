"""Names of hosts as people type them."""

from __future__ import annotations

import pytest

from mlxcel.decide.host_names import host_name
from mlxcel.errors import ConfigError
from mlxcel.evidence import load_records

HOSTS = sorted({record.host.chip for record in load_records()})


@pytest.mark.parametrize(
    "name",
    [
        "Apple M3 Ultra", "apple m1", "Apple M6 Max", "Apple M12 Hyper", "Apple processor",
        "applegpu_g18s", "cuda", "NVIDIA H200", "H100", "GB10", "L40S", "RTX 4090",
        "NVIDIA GeForce RTX 6090 Ti", "AMD Instinct MI300X", "GPU Foo", "cpu", "CPU Foo",
        "AMD EPYC 9B14", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "ARM Neoverse-V2",
        "Common KVM processor", "x86_64", "aarch64", *HOSTS,
    ],
)  # fmt: skip
def test_names_that_are_understood(name):
    assert host_name(name, HOSTS) == name


@pytest.mark.parametrize("name", ["M3", "M3 Ultra", "m6 max"])
def test_an_apple_chip_may_go_without_apple(name):
    assert host_name(name) == f"Apple {name}"


def test_names_of_the_evidence_are_understood_whatever_they_are():
    assert host_name("my  Box", ["My box"]) == "my Box"


@pytest.mark.parametrize(
    "name", ["Foo", "", "M3 Ultimate", "Max", "M", "9", "Aple M3 Ultra", "日本"]
)
def test_what_means_nothing_is_refused_with_what_is_understood(name):
    with pytest.raises(ConfigError) as caught:
        host_name(name, HOSTS)
    for part in (repr(name), "'Apple M3 Ultra'", "'NVIDIA H200'", "'cpu'", "GPU or CPU"):
        assert part in str(caught.value)


def test_a_slip_is_told_the_nearest_name():
    with pytest.raises(ConfigError, match=r"did you mean 'Apple M3 Ultra'\?"):
        host_name("Aple M3 Ultra")
    with pytest.raises(ConfigError, match=r"did you mean 'My box'\?"):
        host_name("My bix", ["My box"])

"""`Settings`: sources and their order, every refusal, and the parsers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mlxcel.config import Settings, environment_table, parse_bool
from mlxcel.errors import ConfigError
from mlxcel.hardware import blas

VARIABLES = {f.metadata["env"] for f in dataclasses.fields(Settings) if f.metadata["env"]}


def test_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.weights == "auto"
    assert (settings.max_rows, settings.max_width, settings.default_width) == (8, 16, 4)
    assert (settings.prefill_chunk, settings.length_step) == (512, 256)
    assert settings.prefix_bytes == 256 * 2**20
    assert settings.lean_modules is True
    assert settings.enable_mtp_b1 is None
    assert settings.mtp_adaptive is True
    assert (settings.mtp_exactness, settings.mtp_block_controller) == ("token", "throughput")
    assert settings.numerics == "fast"
    assert settings.cache_dir == Path.home() / ".cache" / "mlxcel"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().max_rows = 9  # type: ignore[misc]


def test_argument_outranks_environment_which_outranks_default() -> None:
    environ = {"MLXCEL_MAX_ROWS": "3", "MLXCEL_PREFILL_CHUNK": " 64 "}
    settings = Settings.from_env(environ, max_rows=5, weights=None)
    assert (settings.max_rows, settings.prefill_chunk, settings.weights) == (5, 64, "auto")


def test_an_overridden_variable_is_not_read() -> None:
    assert Settings.from_env({"MLXCEL_MAX_ROWS": "many"}, max_rows=2).max_rows == 2


def test_every_variable_is_read() -> None:
    environ = {
        "MLXCEL_WEIGHTS": "Dense",
        "MLXCEL_BLAS": "OFF",
        "MLXCEL_CACHE_DIR": "~/somewhere",
        "MLXCEL_MAX_ROWS": "2",
        "MLXCEL_DRAFT_WIDTH": "6",
        "MLXCEL_PREFILL_CHUNK": "128",
        "MLXCEL_MAX_QUEUE": "9",
        "MLXCEL_CACHE_BYTES": "2GB",
        "MLXCEL_PREFIX_BYTES": "3 MiB",
        "MLXCEL_LEAN": "No",
        "MLXCEL_ENABLE_MTP_B1": "off",
        "MLXCEL_MTP_ADAPTIVE": "0",
        "MLXCEL_MTP_EXACTNESS": " Bitwise",
        "MLXCEL_MTP_BLOCK_CONTROLLER": "requested",
        "MLXCEL_DRAFTER_BITS": "OFF",
        "MLXCEL_ASSISTANT_POSITION": "Last",
        "MLXCEL_NUMERICS": "INVARIANT ",
        "MLXCEL_CLIENT_BUFFER": "99",
    }
    assert environ.keys() == VARIABLES
    assert Settings.from_env(environ) == Settings(
        weights="dense",
        blas="off",
        cache_dir=Path.home() / "somewhere",
        max_rows=2,
        default_width=6,
        prefill_chunk=128,
        max_queue=9,
        cache_bytes=2 * 10**9,
        prefix_bytes=3 * 2**20,
        lean_modules=False,
        enable_mtp_b1=False,
        mtp_adaptive=False,
        mtp_exactness="bitwise",
        mtp_block_controller="requested",
        drafter_bits="off",
        assistant_position="last",
        numerics="invariant",
        client_buffer=99,
    )


@pytest.mark.parametrize("text", ["true", "1", "yes", "on", " TRUE ", "Yes"])
def test_true(text: str) -> None:
    assert parse_bool("MLXCEL_LEAN", text) is True


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "OFF", " False\n"])
def test_false(text: str) -> None:
    assert parse_bool("MLXCEL_LEAN", text) is False


@pytest.mark.parametrize("text", ["", " ", "2", "y", "enabled", "offf", "none"])
def test_a_boolean_it_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({"MLXCEL_LEAN": text})
    assert "MLXCEL_LEAN" in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "int4"),
        ("weights", None),
        ("blas", True),
        ("cache_dir", ""),
        ("cache_dir", 7),
        ("max_rows", 0),
        ("max_rows", 257),
        ("max_rows", True),
        ("max_rows", 2.0),
        ("max_rows", "2"),
        ("max_width", 65),
        ("default_width", 0),
        ("prefill_chunk", -1),
        ("length_step", 0),
        ("lean_modules", 1),
        ("lean_modules", "false"),
        ("enable_mtp_b1", "true"),
        ("enable_mtp_b1", 0),
        ("mtp_adaptive", None),
        ("mtp_exactness", "exact"),
        ("mtp_exactness", True),
        ("mtp_block_controller", "auto"),
        ("numerics", "exact"),
        ("numerics", None),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**{field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_bound_names_field_variable_value_and_bounds() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({"MLXCEL_MAX_ROWS": "1000"})
    for part in ("max_rows", "MLXCEL_MAX_ROWS", "1000", "between 1 and 256"):
        assert part in str(caught.value)


def test_contradictions_name_both_fields() -> None:
    with pytest.raises(ConfigError, match=r"default_width = 9 tokens .* max_width = 8 tokens"):
        Settings(default_width=9, max_width=8)
    with pytest.raises(ConfigError, match=r"\(from MLXCEL_DRAFT_WIDTH\) = 20"):
        Settings.from_env({"MLXCEL_DRAFT_WIDTH": "20"})
    with pytest.raises(ConfigError, match=r"max_width = 16 .* length_step = 8"):
        Settings(length_step=8)


@pytest.mark.parametrize("text", ["", "four", "4.0", "0x4", "4 5", "9" * 30])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="MLXCEL_DRAFT_WIDTH"):
        Settings.from_env({"MLXCEL_DRAFT_WIDTH": text})


def test_an_unknown_variable_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"MLXCEL_MAXROWS.*'3'.*did you mean MLXCEL_MAX_ROWS"):
        Settings.from_env({"MLXCEL_MAXROWS": "3"})


def test_an_unknown_override_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean max_rows"):
        Settings.from_env({}, max_row=3)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCEL_MAX_ROWS", "7")
    assert Settings.from_env().max_rows == 7
    assert Settings().max_rows == 8


def test_other_variables_and_the_build_kind_are_ignored() -> None:
    environ = {"MLXCEL_BUILD": "checked", "HOME_MLXCEL": "x", "PATH": "/bin"}
    assert Settings.from_env(environ) == Settings.from_env({})


def test_cache_folder_respects_xdg(tmp_path: Path) -> None:
    xdg = {"XDG_CACHE_HOME": str(tmp_path)}
    assert Settings.from_env(xdg).cache_dir == tmp_path / "mlxcel"
    own = xdg | {"MLXCEL_CACHE_DIR": str(tmp_path / "own")}
    assert Settings.from_env(own).cache_dir == tmp_path / "own"
    relative = {"XDG_CACHE_HOME": "cache"}
    assert Settings.from_env(relative).cache_dir == Path.home() / ".cache" / "mlxcel"


def test_the_table_has_every_variable() -> None:
    table = environment_table()
    assert all(f"`{name}`" in table for name in VARIABLES | {"MLXCEL_BUILD"})


@pytest.mark.parametrize("mode", blas.MODES)
def test_blas_modes_are_those_of_the_hardware_layer(mode: Any) -> None:
    assert Settings(blas=mode).blas == mode


def test_every_field_has_help() -> None:
    assert all(f.metadata["help"] for f in dataclasses.fields(Settings))


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("512MiB", 2**29), (" 2 gb ", 2 * 10**9), ("3KiB", 3072), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert Settings.from_env({"MLXCEL_PREFIX_BYTES": text}).prefix_bytes == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5GiB", "-1", "12 apples", "1 Mi B", "2000TiB"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="MLXCEL_PREFIX_BYTES"):
        Settings.from_env({"MLXCEL_PREFIX_BYTES": text})

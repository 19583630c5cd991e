"""Choice of BLAS: the decision with everything injected, then the real thing in subprocesses."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxcel
from mlxcel.errors import ConfigError
from mlxcel.hardware import blas

SHIM, LIBRARY, MLX = Path("/shim.so"), Path("/openblas.so"), Path("/libmlx.so")
LINUX_CPU = sys.platform == "linux" and blas.find_mlx_library() is not None


def finder(**without: None) -> Callable[[str], Path | None]:
    paths: dict[str, Path | None] = {"mlx": MLX, "openblas": LIBRARY, "shim": SHIM}
    return lambda what: (paths | without)[what]


def decide(mode: str = "auto", **changes: Any) -> blas.BlasChoice:
    given: dict[str, Any] = {
        "system": "linux",
        "mlx_loaded": False,
        "find": finder(),
        "put_in_front": lambda shim, library: "openblas 9 (scipy-openblas32)",
    }
    return blas.decide(mode, **(given | changes))


def test_openblas_is_put_in_front() -> None:
    seen: list[tuple[Path, Path]] = []

    def put(shim: Path, library: Path) -> str:
        seen.append((shim, library))
        return "openblas 9 (scipy-openblas32)"

    choice = decide(put_in_front=put)
    assert seen == [(SHIM, LIBRARY)]
    assert (choice.name, choice.active) == ("openblas 9 (scipy-openblas32)", True)


def fails(shim: Path, library: Path) -> str:
    raise OSError("cannot open shared object")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlx_loaded": True}, "imported before"),
        ({"find": finder(openblas=None)}, "pip install scipy-openblas32"),
        ({"find": finder(shim=None)}, "not built"),
        ({"put_in_front": fails}, "cannot open shared object"),
    ],
)
def test_what_is_missing_is_said_once_and_work_goes_on(
    changes: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    choice = decide(**changes)
    assert (choice.name, choice.active) == (blas.WHEEL, False)
    assert words in choice.reason
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert words in caplog.text


@pytest.mark.parametrize(
    ("mode", "changes", "name"),
    [
        ("off", {}, "off"),
        ("auto", {"system": "darwin"}, "accelerate"),
        ("auto", {"system": "win32"}, blas.WHEEL),
        ("auto", {"find": finder(mlx=None)}, blas.WHEEL),
    ],
)
def test_where_nothing_is_wrong_nothing_is_said(
    mode: str, changes: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    choice = decide(mode, **changes)
    assert (choice.name, choice.active, caplog.records) == (name, False, [])


def test_mode_comes_from_the_argument_then_the_environment() -> None:
    assert blas.parse_mode(None, {}) == "auto"
    assert blas.parse_mode(None, {"MLXCEL_BLAS": " OFF "}) == "off"
    assert blas.parse_mode("auto", {"MLXCEL_BLAS": "off"}) == "auto"


@pytest.mark.parametrize("value", ["", "openblas", "0"])
def test_another_mode_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=f"MLXCEL_BLAS={value!r}"):
        blas.parse_mode(None, {"MLXCEL_BLAS": value})


def test_the_choice_is_made_once() -> None:
    assert blas.choose() is blas.choose("auto")


def in_new_process(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code with this mlxcel first on the path."""
    root = str(Path(mlxcel.__file__).parents[1])
    clean = {name: value for name, value in os.environ.items() if name != "MLXCEL_BLAS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"PYTHONPATH": root} | environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


PROBE = """
import logging
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
{before}
from mlxcel.hardware import blas
choice = blas.choose(), blas.choose()
assert choice[0] is choice[1]
print(blas.probe_blas(), "|", blas.forwarded_calls())
"""


@pytest.mark.skipif(not LINUX_CPU, reason="needs Linux with an mlx backend")
def test_a_product_of_mlx_reaches_openblas() -> None:
    done = in_new_process(PROBE.format(before=""))
    name, calls = done.stdout.strip().split(" | ")
    assert done.stderr == ""
    assert name.startswith("openblas 0.")
    assert int(calls) >= 1


@pytest.mark.skipif(not LINUX_CPU, reason="needs Linux with an mlx backend")
def test_off_leaves_the_wheel_alone() -> None:
    done = in_new_process(PROBE.format(before=""), MLXCEL_BLAS="off")
    assert (done.stdout.strip(), done.stderr) == (f"{blas.WHEEL} | 0", "")


@pytest.mark.skipif(not LINUX_CPU, reason="needs Linux with an mlx backend")
def test_after_mlx_it_is_too_late_and_one_line_says_so() -> None:
    done = in_new_process(PROBE.format(before="import mlx.core"))
    assert done.stdout.strip() == f"{blas.WHEEL} | 0"
    assert done.stderr.count("\n") == 1
    assert "mlxcel.hardware.blas WARNING" in done.stderr


@pytest.mark.skipif(not LINUX_CPU, reason="needs Linux with an mlx backend")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_products_are_right(dtype: str) -> None:
    import mlx.core as mx
    import numpy as np

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 5, 7, 33)), rng.standard_normal((2, 5, 33, 9))
    a, b = a.astype(dtype), b.astype(dtype)
    if dtype == "complex64":
        a, b = a + 1j * a[::-1], b - 2j * b[::-1]
    before = blas.forwarded_calls()
    product = np.array(mx.matmul(mx.array(a), mx.array(b), stream=mx.cpu))
    np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-4)
    if blas.choose().active:
        assert blas.forwarded_calls() > before


@pytest.mark.skipif(not LINUX_CPU, reason="needs Linux with an mlx backend")
@pytest.mark.parametrize("module", ["mlxcel.models", "mlxcel.runtime", "mlxcel.engine"])
def test_packages_that_use_mlx_choose_first(module: str) -> None:
    done = in_new_process(
        f"import sys, {module}; from mlxcel.hardware import blas; assert blas._choice is not None;"
        "assert 'mlx.core' not in sys.modules"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")
def test_the_shim_names_what_it_cannot_open(tmp_path: Path) -> None:
    shim = blas._find("shim")
    assert shim is not None
    with pytest.raises(OSError, match="absent"):
        blas._put_in_front(shim, tmp_path / "absent.so")
    empty = tmp_path / "not-a-library.so"
    empty.write_bytes(b"text")
    with pytest.raises(OSError, match="not-a-library"):
        blas._put_in_front(shim, empty)

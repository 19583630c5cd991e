"""Products of few rows: right, the same for any number of rows, and safe to share."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

SPEC = importlib.util.find_spec("mlxcel.hardware._blas_shim") if sys.platform == "linux" else None
pytestmark = pytest.mark.skipif(SPEC is None, reason="the shim is for Linux")

Matrix = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    assert SPEC is not None
    library = ctypes.CDLL(str(SPEC.origin))
    library.mlxcel_skinny_threads(3)  # before the first product; as many as the pool may have
    return library


def product(
    library: ctypes.CDLL, a: Matrix, b: Matrix, transposed: bool, gap: int = 0
) -> Matrix:
    """``a @ b.T`` or ``a @ b``; ``gap`` unused floats after each row of the result."""
    m, k = a.shape
    n = b.shape[0] if transposed else b.shape[1]
    out = np.full((m, n + gap), np.nan, np.float32)
    pointer = ctypes.POINTER(ctypes.c_float)
    library.mlxcel_skinny(
        int(transposed), m, n, k,
        a.ctypes.data_as(pointer), a.strides[0] // 4,
        b.ctypes.data_as(pointer), b.strides[0] // 4,
        out.ctypes.data_as(pointer), n + gap,
    )  # fmt: skip
    assert np.isnan(out[:, n:]).all()
    return out[:, :n]


def matrices(m: int, n: int, k: int, transposed: bool, seed: int = 0) -> tuple[Matrix, Matrix]:
    rng = np.random.default_rng([seed, m, n, k])
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    return a, b


SHAPES = [
    (1, 1, 1), (1, 3, 15), (2, 5, 16), (3, 4, 17), (4, 64, 64), (5, 7, 100), (7, 33, 48),
    (8, 96, 64), (12, 112, 64), (16, 64, 113), (16, 1536, 576), (3, 577, 1537), (1, 5000, 576),
]  # fmt: skip


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_double_precision(
    library: ctypes.CDLL, shape: tuple[int, int, int], transposed: bool
) -> None:
    m, n, k = shape
    a, b = matrices(m, n, k, transposed)
    exact = a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64)
    found = product(library, a, b, transposed, gap=3)
    mass = np.abs(a.astype(np.float64)) @ np.abs(b.T if transposed else b).astype(np.float64)
    assert (np.abs(found - exact) <= 1e-6 * mass).all()


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("n", "k"), [(1536, 576), (576, 1536), (112, 64), (64, 113), (50, 33)])
def test_a_row_does_not_depend_on_its_neighbours(
    library: ctypes.CDLL, n: int, k: int, transposed: bool
) -> None:
    a, b = matrices(16, n, k, transposed)
    alone = np.concatenate([product(library, a[r : r + 1], b, transposed) for r in range(16)])
    for rows in range(1, 17):
        together = product(library, a[:rows], b, transposed)
        np.testing.assert_array_equal(together, alone[:rows], err_msg=f"{rows} rows")


def test_rows_may_lie_apart(library: ctypes.CDLL) -> None:
    wide, b = matrices(4, 96, 200, True)
    a = wide[:, 20:84]
    np.testing.assert_array_equal(
        product(library, a, b[:, 20:84], True),
        product(library, a.copy(), b[:, 20:84].copy(), True),
    )


def test_threads_may_call_at_once(library: ctypes.CDLL) -> None:
    """Each gets its own result; a pool that is taken makes nobody wait or mix."""
    cases = [matrices(4, 700 + 50 * i, 576, True, seed=i) for i in range(4)]
    wanted = [product(library, a, b, True) for a, b in cases]

    def many(index: int) -> bool:
        a, b = cases[index]
        return all(
            np.array_equal(product(library, a, b, True), wanted[index]) for _ in range(150)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


def test_a_forked_child_goes_on_alone(library: ctypes.CDLL) -> None:
    a, b = matrices(4, 1536, 576, True)
    wanted = product(library, a, b, True)
    child = os.fork()
    if child == 0:
        same = np.array_equal(product(library, a, b, True), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0

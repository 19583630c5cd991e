"""Build of the compiled parts; all metadata is in pyproject.toml.

``MLXCEL_BUILD`` selects the kind of build (comma-separated words):

``checked``   bounds, wraparound, initialisation and division checks on, ``-O1 -g``
``annotate``  writes the HTML of interpreter contacts beside each ``.pyx``
``trace``     line tracing, for coverage of Cython code
``abi3``      one binary for CPython 3.11 and later (calls are slower)
"""

from __future__ import annotations

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

KINDS = {"checked", "annotate", "trace", "abi3"}
chosen = {word for word in os.environ.get("MLXCEL_BUILD", "").split(",") if word}
if unknown := chosen - KINDS:
    raise SystemExit(f"MLXCEL_BUILD: unknown {sorted(unknown)}; use any of {sorted(KINDS)}")

checked = "checked" in chosen
trace = "trace" in chosen
abi3 = "abi3" in chosen

directives = {
    "language_level": 3,
    "embedsignature": True,
    "boundscheck": checked,
    "wraparound": False,
    "initializedcheck": checked,
    "cdivision": not checked,
    "linetrace": trace,
}
macros: list[tuple[str, str | None]] = []
if trace:
    macros.append(("CYTHON_TRACE_NOGIL", "1"))
if checked:
    macros.append(("MLXCEL_CHECKED", "1"))
if abi3:
    macros.append(("Py_LIMITED_API", "0x030B0000"))
compile_args = ["-O1", "-g"] if checked else ["-O3"]
compile_args += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
compile_args += ["-Wno-missing-field-initializers"]


def cython_module(name: str) -> Extension:
    return Extension(
        f"mlxcel._fast.{name}",
        [f"mlxcel/_fast/{name}.pyx"],
        define_macros=macros,
        extra_compile_args=compile_args,
        py_limited_api=abi3,
    )


modules = cythonize(
    [cython_module(name) for name in ("slots", "ngram", "buildinfo")],
    compiler_directives=directives,
    annotate="annotate" in chosen,
    force=True,
)
if sys.platform == "linux":
    # Not a Python module: a plain shared object that hardware.blas opens by path.
    modules.append(
        Extension(
            "mlxcel.hardware._blas_shim",
            ["mlxcel/hardware/_blas_shim.c", "mlxcel/hardware/_skinny.c"],
            depends=["mlxcel/hardware/_skinny.h"],
            # Products are sums in one order: reordering would undo what _skinny.c promises.
            extra_compile_args=["-O3", "-fno-math-errno", "-Wall", "-Wextra"],
            libraries=["dl", "pthread"],
        )
    )

setup(ext_modules=modules)

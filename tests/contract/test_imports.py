"""The table of imports: which package may use which, of ours and of others.

Every import counts, also inside functions and under TYPE_CHECKING. A package that is
missing from the table is reported too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """What a package may import: modules of ours by prefix, and others by first name."""

    ours: str = ""
    others: str = ""


BASE = "mlxcel.errors mlxcel.types mlxcel.config"
FRONT = (
    "mlxcel.assets mlxcel.engine mlxcel.hardware mlxcel.runtime mlxcel.decide "
    "mlxcel.bench mlxcel.distill mlxcel.evidence"
)

# The longest matching name applies; a package may always import itself.
TABLE = {
    "mlxcel.errors": Row(),
    "mlxcel.types": Row("mlxcel.errors mlxcel.sampling_params"),
    "mlxcel.sampling_params": Row("mlxcel.errors"),
    "mlxcel.config": Row("mlxcel.errors mlxcel.config_parse mlxcel.config_defaults"),
    "mlxcel.config_defaults": Row(),
    "mlxcel.config_parse": Row("mlxcel.errors"),
    "mlxcel.decide": Row(BASE),
    "mlxcel.assets": Row(BASE),
    "mlxcel.evidence": Row(f"{BASE} mlxcel.decide"),
    "mlxcel._fast": Row(others="cython libc cpython"),
    "mlxcel.hardware": Row(BASE, "mlx numpy"),
    "mlxcel.models": Row(f"{BASE} mlxcel.hardware", "mlx mlx_lm"),
    "mlxcel.runtime": Row(
        f"{BASE} mlxcel.hardware mlxcel.models",
        "mlx mlx_lm numpy gguf huggingface_hub safetensors tokenizers transformers",
    ),
    "mlxcel.prompts": Row("mlxcel.errors"),
    "mlxcel.streams": Row("mlxcel.errors mlxcel.types"),
    "mlxcel.front": Row("mlxcel.errors mlxcel.types mlxcel.prompts mlxcel.streams"),
    "mlxcel.remote": Row(f"{BASE} mlxcel.front mlxcel", "msgpack"),
    # The one module there that needs the engine; its process imports it late.
    "mlxcel.remote.backend": Row(f"{BASE} mlxcel.front mlxcel.engine mlxcel.remote"),
    "mlxcel.engine": Row(
        f"{BASE} mlxcel.front mlxcel.assets mlxcel.decide mlxcel._fast mlxcel.hardware "
        "mlxcel.models mlxcel.runtime",
        "mlx numpy",
    ),
    "mlxcel.bench": Row(
        f"{BASE} mlxcel mlxcel.llm mlxcel.assets mlxcel.decide mlxcel.hardware",
        "numpy scipy matplotlib rich",
    ),
    "mlxcel.distill": Row(
        f"{BASE} mlxcel.assets mlxcel.hardware mlxcel.models mlxcel.runtime",
        "mlx mlx_lm numpy tokenizers rich",
    ),
    "mlxcel.llm": Row(f"{BASE} {FRONT} mlxcel.front"),
    "mlxcel.cli": Row(
        f"{BASE} {FRONT} mlxcel mlxcel.llm mlxcel.front mlxcel.remote", "click rich"
    ),
    "mlxcel.__main__": Row("mlxcel.cli"),
    "mlxcel": Row(f"{BASE} mlxcel.llm mlxcel.remote"),
    "webapp": Row(f"mlxcel {BASE}", "flask werkzeug gunicorn prometheus_client pydantic"),
    "benchmarks": Row(
        f"{BASE} {FRONT} mlxcel mlxcel.llm mlxcel.front mlxcel.remote mlxcel._fast "
        "mlxcel.models tests webapp",
        "mlx mlx_lm numpy scipy matplotlib pytest pytest_benchmark click rich llama_cpp",
    ),
}
OURS = ("mlxcel", "webapp", "benchmarks", "tests")
# As `from mlxcel import x`, with x no module: the public names only.
EXACT = {"mlxcel"}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, root: Path) -> bool:
    base = root.joinpath(*name.split("."))
    return base.is_dir() or any(base.with_suffix(end).exists() for end in (".py", ".pyx", ".pxd"))


def python_imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import of a Python file."""
    package = module_name(path, root).split(".")
    if path.stem != "__init__":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if is_module(inner, root) else base


def cython_imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and module name of every import and cimport of a Cython file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r"\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+(.+))", line)
        if not found:
            continue
        for name in (found[1] or found[2]).split("#")[0].split(","):
            yield number, name.split(" as ")[0].strip()


def covers(allowed: str, name: str) -> bool:
    return name == allowed or (allowed not in EXACT and name.startswith(f"{allowed}."))


def owner(module: str) -> str | None:
    """Name of the row that applies to a module."""
    names = [name for name in TABLE if module == name or module.startswith(f"{name}.")]
    best = max(names, key=len, default=None)
    # Only the package's own __init__ has the row of the root.
    return None if best in EXACT and module != best else best


def allowed(module: str, name: str) -> bool:
    row_name = owner(module)
    if row_name is None:
        return False
    if name.split(".")[0] in OURS:
        ours = [*TABLE[row_name].ours.split(), row_name]
        return any(covers(prefix, name) for prefix in ours)
    first = name.split(".")[0]
    return first in sys.stdlib_module_names or first in TABLE[row_name].others.split()


def violations(root: Path) -> list[str]:
    """``file:line: module may not import name`` for every forbidden import under a root."""
    found = []
    for top in ("mlxcel", "webapp", "benchmarks"):
        for path in sorted((root / top).rglob("*.py*")):
            if path.suffix not in (".py", ".pyx") and path.suffix != ".pxd":
                continue
            read = python_imports if path.suffix == ".py" else cython_imports
            module = module_name(path, root)
            found += [
                f"{path.relative_to(root)}:{line}: {module} may not import {name}"
                for line, name in read(path, root)
                if not allowed(module, name)
            ]
    return found


def test_every_import_is_in_the_table() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("mlxcel/decide/gate.py", "import numpy as np", "numpy"),
        ("mlxcel/decide/gate.py", "def f():\n    from mlx import core", "mlx"),
        ("mlxcel/decide/gate.py", "from mlxcel import _fast", "mlxcel._fast"),
        ("mlxcel/config.py", "import mlx.core", "mlx.core"),
        ("mlxcel/errors.py", "import mlxcel.types", "mlxcel.types"),
        ("mlxcel/hardware/host.py", "from mlxcel.engine import plan", "mlxcel.engine"),
        ("mlxcel/models/a.py", "from ..engine import plan", "mlxcel.engine"),
        ("mlxcel/runtime/a.py", "from mlxcel.decide.gate import f", "mlxcel.decide.gate"),
        ("mlxcel/engine/a.py", "import flask", "flask"),
        ("mlxcel/engine/a.py", "import mlx_lm", "mlx_lm"),
        ("mlxcel/remote/client.py", "import mlx.core", "mlx.core"),
        ("mlxcel/remote/client.py", "from mlxcel.engine import plan", "mlxcel.engine"),
        (
            "mlxcel/distill/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mlxcel.engine.round",
            "mlxcel.engine.round",
        ),
        ("mlxcel/cli/a.py", "from mlxcel import _fast", "mlxcel._fast"),
        ("mlxcel/stray.py", "import numpy", "numpy"),
        ("mlxcel/_fast/a.pyx", "cimport numpy as cnp", "numpy"),
        ("mlxcel/_fast/a.pyx", "from mlxcel.decide.gate import f", "mlxcel.decide.gate"),
        ("webapp/app.py", "import mlx.core as mx", "mlx.core"),
        ("webapp/app.py", "from mlxcel.engine.plan import Plan", "mlxcel.engine.plan"),
        ("webapp/app.py", "import numpy", "numpy"),
    ],
)
def test_a_forbidden_import_is_reported(tmp_path: Path, file: str, text: str, name: str) -> None:
    for package in ("decide", "engine", "_fast"):
        (tmp_path / "mlxcel" / package).mkdir(parents=True)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    line = text.count("\n") + 1
    module = module_name(path, tmp_path)
    assert violations(tmp_path) == [f"{file}:{line}: {module} may not import {name}"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("mlxcel/decide/gate.py", "import math\nfrom mlxcel.types import Request"),
        ("mlxcel/engine/a.py", "import mlx.core as mx\nfrom mlxcel._fast import SlotTable"),
        ("mlxcel/runtime/a.py", "from .frame import Frame\nimport numpy as np"),
        ("mlxcel/_fast/a.pyx", "cimport cython\nfrom libc.stdint cimport int32_t"),
        ("webapp/app.py", "import flask\nfrom mlxcel import LLM, load"),
        ("mlxcel/cli/a.py", "import click\nfrom mlxcel.engine.worker import EngineThread"),
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert violations(tmp_path) == []

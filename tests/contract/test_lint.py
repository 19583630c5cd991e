"""Cheap checks of the text of the package; ruff, mypy and stubtest run by ``make``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 350
CODE = sorted(p for top in ("mlxcel", "webapp") for p in (ROOT / top).rglob("*.py"))
PACKAGE = [path for path in CODE if path.is_relative_to(ROOT / "mlxcel")]
TEXT = [
    path
    for pattern in ("*.md", "*.toml", "Makefile", ".ci/*", "**/*.py", "**/*.pyx", "**/*.c")
    for top in ("", "mlxcel", "webapp", "tests", "benchmarks", "docs", "tools")
    for path in ((ROOT / top).glob(pattern) if top or "**" not in pattern else ())
    if path.is_file() and path != Path(__file__)
]
# Homes and temporary folders of some machine; a test's made-up root-level path is no such thing.
MACHINE_PATH = re.compile(r"(?<![\w.$~{}])/(?:home|Users|root|mnt|srv|tmp|workspace|work)/\w+")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public functions and classes with their public methods; setters share their getter's text."""
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        marks = [ast.unparse(mark) for mark in node.decorator_list]
        if any(mark.endswith((".setter", "overload", "override")) for mark in marks):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{node.name}.")


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_nothing_prints(path: Path) -> None:
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    prints = [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
    assert prints == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    long = {
        node.name: length
        for node in functions(ast.parse(text))
        if (length := (node.end_lineno or 0) - node.lineno + 1) >= MAX_FUNCTION_LINES
    }
    assert long == {}
    assert text.count("\n") < MAX_FILE_LINES


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module has none"
    assert [name for name, node in public(tree.body) if not ast.get_docstring(node)] == []


def test_no_paths_of_some_machine() -> None:
    assert TEXT
    found = [
        f"{name_of(path)}:{number}: {hit[0]}"
        for path in TEXT
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (hit := MACHINE_PATH.search(line))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["open('/home/ann/x')", "cd /tmp/build", "at /Users/b/c"])
def test_a_machine_path_would_be_found(text: str) -> None:
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["~/tmp/x", "https://a.org/home/page", "$HOME/work/x"])
def test_other_paths_are_left_alone(text: str) -> None:
    assert not MACHINE_PATH.search(text)

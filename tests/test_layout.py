"""The folders are the architecture: imports point one way, and what is on disk is what is shipped."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("runtime", "backends", "actors", "api")
"""A folder may import itself and those to its left."""
TOP_LEVEL = {"actors", "api", "backends", "bench", "docs", "runtime", "tests"}
FIXED_FILES = {"LICENSE", "Makefile", "README.md", "pyproject.toml"}


def imported_layers(source: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            assert not name.startswith("tripower.api.tripower"), f"{source}:{node.lineno}: import tripower"
            head, _, rest = name.partition(".")
            if head == "tripower":
                yield node.lineno, rest.partition(".")[0]
            else:
                assert head not in LAYERS, f"{source}:{node.lineno}: spell it tripower.{name}"


def sources(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "typing" not in path.relative_to(ROOT).parts]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for source in sources(layer):
        if source.is_relative_to(ROOT / "api" / "tripower"):
            continue  # the facade re-exports everything
        for line, target in imported_layers(source):
            lazily = (layer, target) == (
                "api",
                "bench",
            ) and source.name == "bench.py"  # the command line, when a bench is asked for
            assert target in allowed or lazily, f"{source}:{line}: {layer} imports {target or 'tripower itself'}"


def test_the_kernel_has_never_heard_of_models() -> None:
    for source in sources("runtime/kernel"):
        for line, _ in imported_layers(source):
            text = source.read_text(encoding="utf-8").splitlines()[line - 1]
            assert "tripower.runtime.kernel" in text, f"{source}:{line}: {text}"


def test_backends_and_mechanisms_do_not_know_trio() -> None:
    synchronous = [
        *sources("backends"),
        *sources("runtime/batching"),
        *sources("runtime/engine"),
        *sources("runtime/admission"),
        *sources("runtime/speculation"),
    ]
    for source in synchronous:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert "trio" not in names, f"{source}:{getattr(node, 'lineno', 0)}"


def test_the_package_list_is_what_is_on_disk() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    listed = set(settings["packages"])
    found = {"tripower"}
    for folder in (*LAYERS, "bench"):
        for package in (ROOT / folder).rglob("__init__.py"):
            parts = package.parent.relative_to(ROOT).parts
            if parts[:2] != ("api", "tripower"):
                found.add(".".join(("tripower", *parts)))
    assert listed == found
    assert len(settings["packages"]) == len(listed)


def test_the_top_level_is_fixed() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in tracked.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL | FIXED_FILES


@pytest.mark.parametrize("generator", ["generate_messages.py", "generate_performance.py", "generate_settings.py"])
def test_generated_pages_are_current(generator: str) -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "docs" / generator), "--check"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr

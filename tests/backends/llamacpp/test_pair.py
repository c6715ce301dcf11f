"""The installed pair is found without importing it; what is missing or untried is refused by name, with the cure."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tripower.backends.llamacpp import pair as pairs
from tripower.backends.llamacpp.pair import Pair, digest, find_pair
from tripower.runtime.kernel.errors import ModelRefused


def test_the_installed_pair_is_one_that_was_tried(pair: Pair) -> None:
    assert (pair.declarations_version, pair.library_version) in pairs.TRIED
    assert pair.declarations.is_absolute() and pair.declarations.is_file()
    assert pair.library.is_absolute() and pair.library.is_file()


def test_the_backend_is_named_without_importing_anything_native() -> None:
    code = (
        "import sys, tripower.backends.llamacpp; print({'cffi', 'llama_cpp_py_sync', 'xllamacpp', 'torch'} & set(sys.modules))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout.strip() == "set()"


@pytest.mark.parametrize("missing", ["cffi", "llama_cpp_py_sync", "xllamacpp"])
def test_a_missing_package_is_named_with_the_cure(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == missing else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ModelRefused) as caught:
        find_pair()
    assert caught.value.code == "backend_not_installed"
    assert missing.replace("_", "-") in caught.value.message
    assert "pip install 'tripower[llamacpp]'" in caught.value.message


def test_a_pair_that_nobody_tried_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    with pytest.raises(ModelRefused) as caught:
        find_pair()
    assert caught.value.code == "native_incompatible"
    assert "llama-cpp-py-sync 9.9 with xllamacpp 9.9" in caught.value.message
    assert "xllamacpp 2026.10.11549" in caught.value.message


def test_a_package_without_its_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "LIBRARY", ("xllamacpp", "xllamacpp", "nothing*.so"))
    with pytest.raises(ModelRefused, match=r"without its file nothing\*\.so") as caught:
        find_pair()
    assert caught.value.code == "native_incompatible"


def test_a_library_of_ones_own_takes_the_place_of_the_installed_one(strange_library: Path, tmp_path: Path) -> None:
    assert find_pair(strange_library).library == strange_library
    assert find_pair(strange_library).library_version == ""
    with pytest.raises(ModelRefused, match="there is no library at"):
        find_pair(tmp_path / "none.so")


def test_a_digest_is_sha256_with_boundaries(tmp_path: Path, finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 10)
    monkeypatch.setattr(pairs, "DIGEST_BLOCK_BYTES", 1000)
    assert len(list(digest(path))) == 3
    assert finish(digest(path)) == hashlib.sha256(path.read_bytes()).hexdigest()

"""A pair is tried in a child process: whatever is wrong with it ends the child, is described, and leaves this process alive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tripower.backends.llamacpp import library as libraries
from tripower.backends.llamacpp import probe as probes
from tripower.backends.llamacpp.pair import Pair
from tripower.backends.llamacpp.probe import probe
from tripower.runtime.kernel.errors import ModelRefused


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test asks again."""
    monkeypatch.setattr(probes, "_answers", {})


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every child that is started; none may be left at the end."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield started
    assert all(child.returncode is not None for child in started)


def child_that(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_installed_pair_passes_and_is_asked_once(pair: Pair, finish: Any, children: list[subprocess.Popen[bytes]]) -> None:
    report = finish(probe(pair))
    assert report.version and report.system and not report.gpu
    assert len(report.library_sha256) == len(report.declarations_sha256) == 64
    assert finish(probe(pair)) == report
    assert len(children) == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
        ("import sys; sys.stderr.write('GGML_ASSERT(rows) failed\\n'); sys.exit(3)", "status 3: GGML_ASSERT(rows) failed"),
        ("pass", "an answer that means nothing"),
        ("print('{\"version\": 5}')", "an answer that means nothing"),
        ('print(\'{"refused": "no reason at all"}\')', "no reason at all"),
    ],
)
@pytest.mark.usefixtures("children")
def test_a_child_that_dies_or_answers_nonsense_is_a_refusal_by_name(
    code: str, reason: str, pair: Pair, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "COMMAND", child_that(code))
    with pytest.raises(ModelRefused) as caught:
        finish(probe(pair))
    assert caught.value.code == "native_incompatible"
    assert reason in caught.value.message
    assert "pip install 'tripower[llamacpp]'" in caught.value.message


@pytest.mark.usefixtures("children")
def test_a_refused_pair_is_asked_again(pair: Pair, finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(probes, "COMMAND", child_that("import os; os.abort()"))
        with pytest.raises(ModelRefused):
            finish(probe(pair))
    assert finish(probe(pair)).version


def test_a_child_that_never_answers_is_ended_when_its_time_is_over(
    pair: Pair, finish: Any, monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(probes, "COMMAND", child_that("import signal; signal.pause()"))
    monkeypatch.setattr(probes, "SECONDS_MAX", 0.05)
    with pytest.raises(ModelRefused, match="no answer within 0.05 s"):
        finish(probe(pair))
    assert len(children) == 1


def test_a_load_that_is_stopped_ends_the_child(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(probes, "COMMAND", child_that("import signal; signal.pause()"))
    running = probe(pair)
    while not children:
        next(running)
    assert children[0].poll() is None
    running.close()
    assert children[0].returncode is not None


@pytest.mark.usefixtures("children")
def test_a_file_that_is_no_library_is_refused(pair: Pair, strange_library: Path, finish: Any) -> None:
    with pytest.raises(ModelRefused, match="libllama.so does not load") as caught:
        finish(probe(msgspec.structs.replace(pair, library=strange_library)))
    assert caught.value.code == "native_incompatible"


@pytest.mark.usefixtures("children")
def test_a_library_of_something_else_is_refused(pair: Pair, finish: Any) -> None:
    import _ctypes

    other = Path(_ctypes.__file__)
    with pytest.raises(ModelRefused, match="does not have llama_"):
        finish(probe(msgspec.structs.replace(pair, library=other)))


def test_a_surprising_default_is_a_refusal_that_names_the_field(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.CONTEXT_CANARY, "n_batch", 4096)
    with pytest.raises(ModelRefused, match="llama_context_params.n_batch is 2048, not 4096") as caught:
        libraries.Library(pair)
    assert caught.value.code == "native_incompatible"


def test_declarations_that_cannot_be_read_are_refused(pair: Pair, tmp_path: Path) -> None:
    broken = tmp_path / "_cffi_bindings.py"
    broken.write_text("this is no Python")
    with pytest.raises(ModelRefused, match="the declarations in _cffi_bindings.py cannot be read"):
        libraries.Library(msgspec.structs.replace(pair, declarations=broken))

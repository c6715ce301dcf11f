"""What pip says, and what it does not say, becomes an error that tells the cure."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tripower.api.pull import pip_download
from tripower.api.pull.pip_download import download_wheel, explain, pip_command
from tripower.runtime.kernel.errors import NotFound, Unavailable
from tripower.runtime.store import StoreFull

UNREACHABLE = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(<...>: Failed to establish a new connection: [Errno -3] \
Temporary failure in name resolution)': /simple/x/
ERROR: Could not find a version that satisfies the requirement x==1.0 (from versions: none)
ERROR: No matching distribution found for x==1.0
"""


@pytest.mark.parametrize(
    ("output", "kind", "code"),
    [
        (UNREACHABLE, Unavailable, "index_unreachable"),
        ("ERROR: HTTPSConnectionPool(host='h', port=443): Read timed out.", Unavailable, "index_unreachable"),
        ("ERROR: Could not find a version that satisfies x==1.0 (from versions: 2.0)", NotFound, "distribution_not_found"),
        ("ERROR: No matching distribution found for x==1.0", NotFound, "distribution_not_found"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", StoreFull, "disk_full"),
        ("/usr/bin/python: No module named pip", Unavailable, "pip_missing"),
        ("ERROR: something else", Unavailable, "pip_failed"),
        ("", Unavailable, "pip_failed"),
    ],
)
def test_what_pip_says_becomes_one_of_our_errors(output: str, kind: type[Exception], code: str, tmp_path: Path) -> None:
    error = explain("x==1.0", output, tmp_path)
    assert isinstance(error, kind)
    assert error.code == code


def test_credentials_in_pips_output_are_not_repeated(tmp_path: Path) -> None:
    error = explain("x==1.0", "ERROR: failed https://user:password@mirror.example/simple", tmp_path)
    assert "password" not in error.message
    assert "mirror.example" in error.message


def test_a_python_without_pip_is_told_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str, *arguments: Any) -> None:
        return None

    assert pip_command() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    with pytest.raises(Unavailable, match="ensurepip") as error:
        pip_command()
    assert error.value.code == "pip_missing"


async def test_a_pip_that_cannot_be_started_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pip_download, "pip_command", lambda: [str(tmp_path / "absent")])
    with pytest.raises(Unavailable, match="could not be started"):
        await download_wheel("x==1.0", into=tmp_path, environment={}, on_bytes=lambda size: None)
    assert os.listdir(tmp_path) == []

"""A hangup in the first seconds of a server ends it only where there is nothing to read again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.api.children import environment
from tripower.api.cli import exit_codes
from tripower.api.cli.hangup import hold_hangups
from tripower.api.cli.reload import hangups
from tripower.runtime.configuration import AuthSettings

EARLY = """
import signal, sys
from tripower.api.cli import main, serve
read = serve.read_configuration
def read_configuration(*arguments, **options):
    signal.raise_signal(signal.SIGHUP)
    return read(*arguments, **options)
serve.read_configuration = read_configuration
sys.exit(main(["serve", "--port", "0", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--set", "auth.keys_file=/nowhere"), exit_codes.USAGE), ((), -signal.SIGHUP)],
    ids=["with keys", "with nothing to read again"],
)
def test_a_hangup_before_the_settings_are_known(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", EARLY, *arguments], env=environment(tmp_path), capture_output=True, timeout=60, check=False
    )
    assert finished.returncode == code, finished.stderr


def test_one_that_came_early_is_told_when_somebody_listens() -> None:
    async def listen() -> int:
        with trio.fail_after(20), hangups(AuthSettings(keys_file="keys.toml")) as signals:
            assert signals is not None
            async for number in signals:
                return number
        raise AssertionError

    before = signal.getsignal(signal.SIGHUP)
    with hold_hangups():
        signal.raise_signal(signal.SIGHUP)
        assert trio.run(listen) == signal.SIGHUP
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before

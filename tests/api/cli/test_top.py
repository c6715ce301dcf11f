"""`tripower top` as people run it, against a server that is a process too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.children import COMMAND, PATIENCE, Child, environment, running, tripower
from tests.api.cli.ptys import PseudoTerminal, pseudo_terminal
from tripower.api.cli import exit_codes

NORMAL = "\x1b[?1049l"


@contextmanager
def serving(home: Path) -> Iterator[Child]:
    with running(home, "serve", "toy", "--port", "0", "--quiet", variables=places(home)) as child:
        child.read_until("curl ")
        yield child


def places(home: Path) -> dict[str, str]:
    """A folder for sockets of the test's own."""
    return {"TRIPOWER_RUNTIME_DIR": str(home / "run")}


@contextmanager
def topping(home: Path, terminal: PseudoTerminal, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The live screen in the foreground of a terminal, once it shows something."""
    variables = environment(home, **places(home), TERM="xterm-256color")
    with subprocess.Popen(
        [*COMMAND, "top", *arguments],
        env=variables,
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        start_new_session=True,
    ) as process:
        try:
            terminal.wait_for("tokens/s", "loaded")
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_it_lives_in_a_terminal_until_its_server_has_gone(tmp_path: Path) -> None:
    with serving(tmp_path) as server, pseudo_terminal(100) as terminal:
        before = terminal.attributes()

        once = tripower(tmp_path, "top", "--json", variables=places(tmp_path))
        assert once.returncode == exit_codes.OK, once.stderr
        overview = json.loads(once.stdout)
        assert overview["pid"] == server.process.pid and overview["models"][0]["name"] == "toy"

        with topping(tmp_path, terminal, str(server.process.pid)) as process:  # stopped and going on, then ended by a signal
            process.send_signal(signal.SIGTSTP)
            assert os.waitpid(process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F, "it is stopped"
            terminal.wait_for(NORMAL)
            assert terminal.attributes() == before
            process.send_signal(signal.SIGCONT)
            terminal.wait_for("tokens/s")
            assert not terminal.attributes()[3] & termios.ECHO
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == exit_codes.BY_SIGNAL + signal.SIGTERM
            terminal.wait_for(NORMAL)
            assert terminal.attributes() == before

        with topping(tmp_path, terminal, "--interval", "0.25") as process:
            server.process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == exit_codes.NO_CONNECTION
            assert f"tripower: process {server.process.pid} has ended" in terminal.wait_for("has ended").split(NORMAL)[-1]
            assert terminal.attributes() == before


@pytest.mark.parametrize("arguments", [("--interval", "0"), ("--interval", "soon"), ("--intervall", "1"), ("1", "2")])
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    from tripower.api.cli.program import main

    assert main(["top", *arguments]) == exit_codes.USAGE
    assert "top" in capsys.readouterr().err


def test_without_a_server_it_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tripower.api.cli.program import main

    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(tmp_path / "run"))
    assert main(["top"]) == exit_codes.NO_CONNECTION
    assert "start one with `tripower serve MODEL`" in capsys.readouterr().err

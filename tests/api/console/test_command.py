"""`tripower console` as people and programs run it, against `tripower serve` as a process of its own."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.api.children import COMMAND, PATIENCE, Child, environment, running
from tripower.api.cli import exit_codes
from tripower.api.cli.console import command
from tripower.api.cli.line_editor import LEFT_SECONDS
from tripower.api.cli.program import main
from tripower.api.console.client import ServerGone, open_console
from tripower.api.console.verbs import MODULES, all_verbs, verbs_of

PLACE = "TRIPOWER_RUNTIME_DIR"
HEAVY = ("torch", "numpy", "httpx", "hypercorn", "starlette", "llvmlite", "prometheus_client", "rich")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, str, Path]]:
    """A service with a toy, its banner, and the runtime directory that it has to itself."""
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("run")
    with running(home, "serve", "--port", "0", "toy", variables={PLACE: str(folder)}) as child:
        yield child, child.read_until("curl "), folder


@pytest.fixture
def console(server: tuple[Child, str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """The folder where the service's console is found, also by commands that run in this process."""
    monkeypatch.setenv(PLACE, str(server[2]))
    capfd.readouterr()
    return server[2]


def test_the_banner_tells_what_to_type(server: tuple[Child, str, Path]) -> None:
    child, banner, folder = server
    assert re.search(rf"  console   tripower console {child.process.pid}\n", banner)
    assert stat.S_IMODE((folder / f"{child.process.pid}.sock").stat().st_mode) == 0o600


def test_one_verb_is_answered_for_people(console: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "-c", "help help"]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert out == "help [VERB]  what can be typed\n"
    assert err == ""


def test_programs_get_a_json_value_a_line_and_a_refusal_in_its_place(console: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["console", "--json", "-c", "help help", "-c", "hlep", "-c", "help 'help'"]
    assert main(words) == exit_codes.REFUSED
    out, err = capfd.readouterr()
    first, refusal, last = map(json.loads, out.splitlines())
    assert first == last == [{"name": "help", "usage": "[VERB]", "summary": "what can be typed", "goes_on": False}]
    assert refusal["error"]["code"] == "unknown_verb"
    assert err == "tripower: 'hlep' is no verb (did you mean help?): `help` lists them\n"


@pytest.mark.parametrize("json_asked", [False, True])
def test_a_line_of_python_that_raises_is_a_failure(json_asked: bool, console: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--json"] if json_asked else []
    assert main(["console", *options, "-c", "py 1 / 0", "-c", "py 6 * 7"]) == exit_codes.REFUSED
    out, _ = capfd.readouterr()
    assert "ZeroDivisionError" in out and "42" in out
    assert main(["console", *options, "-c", "py 6 * 7"]) == exit_codes.OK


def test_an_answer_that_takes_its_time_is_announced(
    console: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "NOTE_SECONDS", 0.0)
    assert main(["console", "-c", "py await trio.sleep(0.05)"]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert (out, err) == ("", "py takes its time: still waiting\n")


def test_lines_that_are_piped_in_are_verbs(
    console: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: tuple[Child, str, Path]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n  help help\nhelp 'open\nquit\nhelp\n"))
    assert main(["console", str(server[0].process.pid)]) == exit_codes.REFUSED
    out, err = capfd.readouterr()
    assert out == "help [VERB]  what can be typed\n"
    assert err == "tripower: the line cannot be read: No closing quotation\n"


def test_where_nobody_answers_the_exit_status_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    assert main(["console", "-c", "help"]) == exit_codes.NO_CONNECTION
    assert "tripower serve MODEL" in capfd.readouterr().err


def test_a_person_has_a_prompt_with_completion_and_a_history_of_their_own(console: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    variables = environment(tmp_path, TERM="dumb", TRIPOWER_RUNTIME_DIR=str(console))
    left, written = tmp_path / "console_history-1.tmp", tmp_path / "console_history-2.tmp"
    for path in (left, written):  # a console that was killed while it wrote its history; one that is writing
        path.touch()
    os.utime(left, times=(0.0, time.time() - LEFT_SECONDS - 1.0))
    with subprocess.Popen([*COMMAND, "console"], stdin=theirs, stdout=theirs, stderr=theirs, env=variables) as process:
        os.close(theirs)
        said = b""

        def until(text: bytes) -> None:
            nonlocal said
            while text not in said or not said.endswith(b"tripower> "):  # what is typed before the prompt is not the editor's
                assert select.select([ours], [], [], PATIENCE)[0], said
                said += os.read(ours, 4096)

        try:
            until(b"attached to process")
            os.write(ours, b"hel\t" + b"help\n")  # Tab makes it `help `
            until(b"what can be typed")
            os.write(ours, b"nothing\n")
            until(b"is no verb")
            os.write(ours, b"\x04")
            assert process.wait(PATIENCE) == exit_codes.OK
        finally:
            process.kill()
    os.close(ours)
    kept = tmp_path / "console_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text().splitlines() == ["help help", "nothing"]
    assert written.exists() and not left.exists()


def test_consoles_see_a_server_drain_and_are_told_of_its_end(server: tuple[Child, str, Path]) -> None:
    """The last that needs the server."""
    child, _, folder = server
    path = folder / f"{child.process.pid}.sock"
    command = [*COMMAND, "console", str(path)]
    variables = environment(folder)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, text=True, bufsize=1
    ) as attached:
        assert attached.stdin is not None and attached.stdout is not None and attached.stderr is not None
        attached.stdin.write("help help\n")
        assert "what can be typed" in attached.stdout.readline()

        async def watch() -> None:
            async with open_console(str(path)) as console, console.stream("watch") as looks:
                assert (await anext(looks))["status"] == "ok"
                await console.call("drain")
                async for _ in looks:  # which ends with the server
                    pass
                with pytest.raises(ServerGone):
                    await console.call("help")

        trio.run(watch)
        assert child.end() == exit_codes.OK
        assert not path.exists()
        attached.stdin.write("help\n")
        assert attached.wait(PATIENCE) == exit_codes.NO_CONNECTION
        assert attached.stderr.read() == f"tripower: process {child.process.pid} has ended\n"


def test_asking_loads_no_runtime(tmp_path: Path) -> None:
    program = (
        "import sys, tripower.api.cli.console.command\n"
        "from tripower.api.console.verbs import find_verb\n"
        "assert all(find_verb(name).name == name for name in ('help', 'ps', 'requests'))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_module_has_the_verbs_that_it_is_named_with() -> None:
    for module, names in MODULES.items():
        assert tuple(verb.name for verb in verbs_of(module)) == names
    assert len(all_verbs()) == sum(map(len, MODULES.values()))
    for verb in all_verbs().values():
        assert (verb.run is None) != (verb.stream is None), verb.name
        assert verb.summary and not verb.summary.endswith("."), verb.name

"""The command line as a whole: what it imports, what it says of itself, how it ends when something is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.api.children import COMMAND, environment, tripower
from tripower.api.cli import exit_codes
from tripower.api.cli.arguments import HOMES, build_parser, parse
from tripower.api.cli.problems import CannotConnect, ServerRefused, describe
from tripower.api.cli.program import main
from tripower.api.cli.terminal import size, table
from tripower.api.version import VERSION
from tripower.runtime.configuration import SETTINGS
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest, ModelRefused, NotFound

HEAVY = ("trio", "torch", "numpy", "httpx", "hypercorn", "starlette", "msgspec", "rich", "llvmlite", "prometheus_client")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], [], ["run", "--help"], ["serve", "--help"], ["bench", "--nonsense"]]
)
def test_what_is_said_without_doing_anything_imports_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tripower.api.cli import arguments, main\n"
        f"code = main({words!r}) if {words!r} != ['bench', '--nonsense'] else arguments.build_parser().parse_args({words!r}) and 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "raise SystemExit(code)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.strip() == "[]"


def test_importing_tripower_imports_nothing_heavy_and_every_name_is_there(tmp_path: Path) -> None:
    program = (
        "import sys, tripower\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert all(getattr(tripower, name) is not None for name in tripower.__all__)\n"
        "assert set(tripower.__all__) <= set(dir(tripower))\n"
        "assert 'torch' not in sys.modules and 'httpx' not in sys.modules\n"
        "try:\n"
        "    tripower.nonsense\n"
        "except AttributeError:\n"
        "    print(tripower.__version__)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stdout.strip()) == (0, VERSION), finished.stderr


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tripower {VERSION}\n"


@pytest.mark.parametrize("command", [name for name in HOMES if name != "bench"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: tripower {command}")
    assert len(re.findall(rf"\n    {command}(?=  |\n)", build_parser().format_help())) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rn"], "'rn' is no command (did you mean run?)"),
        (["--debug", "sevre", "toy"], "'sevre' is no command (did you mean serve?)"),
        (["qqq"], "'qqq' is no command: see"),
    ],
)
def test_a_command_that_does_not_exist_is_told_with_the_nearest(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == exit_codes.USAGE and says in capsys.readouterr().err


def test_help_names_what_is_needed_and_nothing_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == exit_codes.USAGE
    said = capsys.readouterr().err
    assert "required: MODEL\n" in said and "PROMPT" not in said.splitlines()[-1]
    for command, names in {
        "ps": ("TRIPOWER_API_KEY", "--cacert", "unix:PATH"),
        "run": ("TRIPOWER_API_KEY", "--cacert", "unix:PATH"),
        "chat": ("TRIPOWER_API_KEY", "--cacert", "unix:PATH"),
        "serve": ("tripower settings", "docs/settings.md", "TRIPOWER_API_KEYS"),
    }.items():
        assert main([command, "--help"]) == exit_codes.OK
        said = capsys.readouterr().out
        assert not [name for name in names if name not in said]


def test_all_settings_are_listed_with_what_was_given_and_where(tmp_path: Path) -> None:
    said = tripower(tmp_path, "settings", "--json", "--set", "engine.threads=3").stdout
    lines = {line["path"]: line for line in json.loads(said)}
    assert list(lines) == list(SETTINGS) and all(line["about"] and line["takes"] for line in lines.values())
    assert (lines["engine.threads"]["value"], lines["engine.threads"]["source"]) == (3, "command line")
    text = tripower(tmp_path, "settings", "--set", "engine.threads=3").stdout
    assert "engine.threads = 3  (command line; the default is 0)\n    threads of one step" in text


def test_a_value_that_a_flag_replaces_is_judged_too(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "serve", "toy", "--set", "server.port=abc", "--port", "0")
    assert finished.returncode == exit_codes.USAGE
    assert "server.port: expected an integer from 0 to 65535, got 'abc' (command line)" in finished.stderr


def test_bench_passes_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "usage: tripower bench" in capsys.readouterr().out
    assert build_parser().parse_args(["bench", "serving", "--json", "--help"]).rest == ["serving", "--json", "--help"]


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "tripower run smollm2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["run"],
        ["run", "toy", "x", "--set", "nothing"],
        ["pull"],
        ["run", "toy", "--seed", "x"],
        ["run", "toy", "x", "--sed", "1"],
        ["chat", "toy", "hi"],
    ],
)
def test_bad_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == exit_codes.USAGE
    assert "usage: tripower" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["run", "toy", "hi", "you"], "prompt", ["hi", "you"]),
        (["run", "toy", "--seed", "1", "hi"], "prompt", ["hi"]),
        (["run", "--seed", "1", "toy", "hi"], "prompt", ["hi"]),
        (["run", "toy", "one", "--seed", "1", "two"], "prompt", ["one", "two"]),
        (["run", "toy", "--", "-5 and 3?"], "prompt", ["-5 and 3?"]),
        (["serve", "a", "--port", "1", "b=c"], "models", ["a", "b=c"]),
        (["serve", "--port", "1", "a", "b"], "models", ["a", "b"]),
        (["serve"], "models", []),
    ],
)
def test_words_may_stand_before_and_after_options(words: list[str], name: str, value: list[str]) -> None:
    assert getattr(parse(words), name) == value


@pytest.mark.parametrize("command", [["run", "toy", "hi"], ["chat", "toy"], ["serve", "toy"], ["doctor"]])
def test_all_settings_that_are_wrong_are_named_together_before_anything_is_opened(command: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = tmp_path / "tripower.toml"
    file.write_text("[scheduler]\nwaiting = -7\n[nonsense]\n")
    finished = tripower(
        home,
        *command,
        *("--config", str(file), "--set", "server.port=abc", "--set", "foo.bar=1"),
        variables={"TRIPOWER_ENGINE__THREADS": "many"},
    )
    assert finished.returncode == exit_codes.USAGE
    assert finished.stdout == ""
    assert not home.exists()
    for wrong in ("server.port", "foo.bar", "scheduler.waiting", "engine.threads", "nonsense"):
        assert f"\n  {wrong}: expected" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_level_of_logs_that_does_not_exist_is_2(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "list", variables={"TRIPOWER_LOG": "loud"})
    assert finished.returncode == exit_codes.USAGE
    assert finished.stderr == "tripower: TRIPOWER_LOG: expected one of debug, info, warning, error, got 'loud' (environment)\n"


def test_errors_are_one_line_and_debug_shows_the_traceback(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "nonsense", "hi")
    assert finished.returncode == exit_codes.REFUSED
    assert finished.stderr.count("\n") == 1
    assert "Accepted: smollm2" in finished.stderr
    for words in (("--debug", "run", "nonsense", "hi"), ("run", "--debug", "nonsense", "hi")):
        debugging = tripower(tmp_path, *words)
        assert debugging.returncode == exit_codes.REFUSED
        assert "Traceback" in debugging.stderr
        assert debugging.stderr.endswith(finished.stderr)
    assert tripower(tmp_path, "run", "toy", "x", "--debug", "--set", "a=1").returncode == exit_codes.USAGE


def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [*COMMAND, "list"],
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (finished.returncode, finished.stderr) == (
        exit_codes.REFUSED,
        "tripower: No space left on device: what was written is not complete\n",
    )


def test_streams_that_are_closed_are_no_obstacle(tmp_path: Path) -> None:
    shell = f"exec {shlex.join(COMMAND)} run toy hi --seed 1 <&- >&- 2>&-"
    finished = subprocess.run(["sh", "-c", shell], env=environment(tmp_path), check=False, timeout=60)
    assert finished.returncode == 0


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (NotFound("no such model"), "no such model", exit_codes.REFUSED),
        (ModelRefused("broken", code="truncated"), "broken", exit_codes.REFUSED),
        (InvalidConfiguration("a: wrong"), "a: wrong", exit_codes.USAGE),
        (InvalidConfiguration("a\nb"), "these settings cannot be used:\n  a\n  b", exit_codes.USAGE),
        (InvalidConfiguration("port 1 is in use", code="port_in_use"), "port 1 is in use", exit_codes.REFUSED),
        (CannotConnect("nobody there"), "nobody there", exit_codes.NO_CONNECTION),
        (ServerRefused("full", status=503, code="queue_full"), "503 queue_full: full", exit_codes.REFUSED),
        (ServerRefused("", status=502), "502", exit_codes.REFUSED),
        (
            InvalidRequest("use /v1/completions", code="chat_template_missing"),
            "this model has no chat template: continue plain text with `tripower run MODEL --raw PROMPT`",
            exit_codes.REFUSED,
        ),
        (
            ValueError("oops"),
            "ValueError: oops (this is a fault in tripower; run again with --debug for the details)",
            exit_codes.REFUSED,
        ),
    ],
)
def test_each_error_has_its_line_and_its_exit_code(error: Exception, text: str, code: int) -> None:
    assert describe([error]) == (text, code)


def test_one_of_ours_counts_more_than_what_comes_with_it() -> None:
    assert describe([RuntimeError("x"), NotFound("ours")])[0] == "ours"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (98_362_432, "93.8 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_in_binary_units(count: int, text: str) -> None:
    assert size(count) == text


def test_tables_line_up() -> None:
    assert table([("A", "B"), ("long", "x")]) == "A     B\nlong  x"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """The pipe breaks in the middle of an answer."""
    with subprocess.Popen(
        [*COMMAND, "run", "toy:2000", "hi", "--seed", "5", "--quiet"],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert len(child.stdout.read(2)) == 2
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == exit_codes.BY_SIGNAL + 13


ENDING = """
import atexit, signal, sys
atexit.register(signal.raise_signal, signal.SIGINT)
from tripower.api.cli import start
sys.argv = ["tripower", "--version"]
start()
"""


def test_ctrl_c_does_not_interrupt_the_end_of_the_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.startswith("tripower ")

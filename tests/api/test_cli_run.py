"""`tripower run`: one answer in this process, with the toy."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from tests.api.children import running, tripower
from tripower.api.cli import exit_codes
from tripower.api.cli.answers import Summary, closing_line
from tripower.api.cli.run import is_piped, read_prompt
from tripower.api.cli.terminal import dim, write

ANSWER = ("--seed", "7", "--max-tokens", "20")


def test_it_prints_the_answer_and_then_its_figures(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "toy", "hi", *ANSWER)
    assert finished.returncode == 0
    assert len(finished.stdout.rstrip("\n")) > 0
    assert finished.stdout.endswith("\n")
    last = finished.stderr.splitlines()[-1]
    assert " token" in last
    assert "first token after" in last
    assert "\x1b" not in finished.stdout + finished.stderr
    assert not list(tmp_path.iterdir()), "the toy needs no store"


def test_quiet_says_nothing_but_the_answer(tmp_path: Path) -> None:
    assert tripower(tmp_path, "run", "toy", "hi", *ANSWER, "--quiet").stderr == ""


def test_the_same_seed_gives_the_same_answer_and_words_are_joined(tmp_path: Path) -> None:
    answers = [
        tripower(tmp_path, "run", "toy", *words, *ANSWER).stdout for words in (["hello", "you"], ["hello you"], ["hello"])
    ]
    assert answers[0] == answers[1] != answers[2]


def test_what_is_piped_in_goes_before_the_prompt(tmp_path: Path) -> None:
    piped = tripower(tmp_path, "run", "toy", "and this", *ANSWER, text="that\n")
    assert piped.stdout == tripower(tmp_path, "run", "toy", "that\n\nand this", *ANSWER).stdout
    assert tripower(tmp_path, "run", "toy", *ANSWER, text="only this\n").stdout == (
        tripower(tmp_path, "run", "toy", "only this", *ANSWER).stdout
    )


def test_without_any_prompt_it_is_bad_usage(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "toy")
    assert finished.returncode == exit_codes.USAGE
    assert finished.stderr == "tripower: there is no prompt: give one, or pipe one in\n"


def test_json_is_one_object(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "toy", "hi", *ANSWER, "--json")
    answer = json.loads(finished.stdout)
    assert answer["text"] == tripower(tmp_path, "run", "toy", "hi", *ANSWER).stdout.rstrip("\n")
    assert (answer["model"], answer["seed"], answer["prompt_tokens"]) == ("toy", 7, len("user: hi\nassistant: "))
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["tokens"] <= 20


def test_raw_continues_the_text_and_system_comes_first(tmp_path: Path) -> None:
    raw = json.loads(tripower(tmp_path, "run", "toy", "hi", "--raw", "--json").stdout)
    assert (raw["prompt_tokens"], raw["tokens"] <= 16) == (2, True)
    with_system = json.loads(tripower(tmp_path, "run", "toy", "hi", "--system", "be", "--json", "--max-tokens", "0").stdout)
    assert with_system["prompt_tokens"] == len("system: be\nuser: hi\nassistant: ")
    assert with_system["text"] == ""


def test_a_prompt_that_does_not_fit_is_refused_with_the_cure(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "toy", "hi", "--set", "engine.context=10")
    assert finished.returncode == exit_codes.REFUSED
    assert "context length is 10 tokens" in finished.stderr
    assert "Shorten the prompt" in finished.stderr


def test_the_timeout_bounds_the_answer_and_what_came_stays(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", "toy:100000", "hi", "--seed", "7", "--timeout", "1", "--quiet")
    assert finished.returncode == exit_codes.REFUSED
    assert len(finished.stdout) > 2
    assert finished.stderr == "tripower: the deadline passed before the answer was complete\n"


def test_a_model_in_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_bytes(b"GGUF" + bytes(20))
    finished = tripower(tmp_path, "run", str(file), "hi", "--quiet")
    assert finished.returncode == exit_codes.REFUSED
    assert finished.stderr.startswith("tripower: ")
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_answer_quietly_and_keeps_what_came(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "run", "toy:200000", "hi", "--seed", "7", "--quiet") as child:
        assert child.process.stdout is not None
        begun = child.process.stdout.read(2)
        child.process.send_signal(number)
        assert child.end() == exit_codes.BY_SIGNAL + number
        assert len(begun) == 2
        assert child.process.stdout.read().endswith("\n")
    assert child.errors == []


def test_a_signal_while_the_model_loads_ends_it_too(smollm2_path: Path, tmp_path: Path) -> None:
    with running(tmp_path, "run", str(smollm2_path), "hi", "--seed", "7") as child:
        child.wait_for_error("starting the engine")
        child.process.send_signal(signal.SIGINT)
        assert child.end() == exit_codes.BY_SIGNAL + signal.SIGINT
        assert child.process.stdout is not None
        assert child.process.stdout.read() == ""


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        (
            Summary(finish_reason="stop", tokens=12, first_token_seconds=0.414, tokens_per_second=15.31),
            "12 tokens, 15.3 tokens/s, first token after 0.41 s",
        ),
        (Summary(finish_reason="length", tokens=1), "1 token, cut off at its limit"),
        (Summary(finish_reason="stop"), ""),
    ],
)
def test_the_closing_line_has_what_is_known(summary: Summary, line: str) -> None:
    assert closing_line(summary) == line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_dim_figures_and_no_control_characters_from_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    write("a\x1b]0;title\x07b\tc\n\x9b")
    assert terminal.getvalue() == "a\ufffd]0;title\ufffdb\tc\n\ufffd"
    assert dim("x", terminal) == "\x1b[2mx\x1b[0m"
    assert dim("x", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert dim("x", terminal) == "x"


def test_a_file_gets_what_the_model_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    write("a\x1bb")
    assert file.getvalue() == "a\x1bb"


def test_a_person_at_a_terminal_without_a_prompt_is_offered_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("typed later"))
    assert read_prompt([]) is None
    assert read_prompt(["hi"]) == "hi"


def test_nothing_is_read_from_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        assert not is_piped(nothing)
        monkeypatch.setattr("sys.stdin", nothing)
        assert read_prompt(["hi"]) == "hi"
        assert read_prompt([]) == ""

"""`tripower console record` and `tripower console view`, as people and programs run them, on a service in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.children import running
from tripower.api.cli import exit_codes
from tripower.api.cli.console import view as view_command
from tripower.api.cli.program import main
from tripower.runtime.introspection.recording import read_recording

SECRET = "nobody shall read this"


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The recording of a service that has answered three times."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    path = folder / "flight"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPOWER_RUNTIME_DIR", str(folder))
        with running(home, "serve", "--port", "0", "toy", variables={"TRIPOWER_RUNTIME_DIR": str(folder)}) as child:
            url = child.read_until("curl ").split("http://")[1].split()[0].rstrip("/")
            for _ in range(3):
                body = {"model": "toy", "prompt": SECRET, "max_tokens": 5}
                httpx.post(
                    f"http://{url}/v1/completions", json=body, headers={"authorization": "Bearer sk-secret"}
                ).raise_for_status()
            assert main(["console", "record", str(path)]) == exit_codes.OK
            assert main(["console", "record", str(folder / "missing" / "flight")]) == exit_codes.REFUSED
    yield path


def view(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["console", "view", *words])
    return (code, *capfd.readouterr())


def test_the_file_is_whole_and_for_its_owner_only(flight: Path) -> None:
    assert stat.S_IMODE(flight.stat().st_mode) == 0o600
    assert [path.name for path in flight.parent.iterdir() if path.name.startswith("flight")] == ["flight"]
    recording = read_recording(flight)
    assert [message.message for message in recording.messages].count("Generate") == 3


def test_neither_prompt_nor_key_nor_answer_is_in_the_file(flight: Path) -> None:
    data = flight.read_bytes()
    assert b"nobody" not in data and b"sk-secret" not in data
    assert json.dumps(list(SECRET.encode()), separators=(",", ":"))[1:-1].encode() not in data


def test_payloads_need_a_time_in_words_of_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "record", str(tmp_path / "flight"), "--payloads"]) == exit_codes.REFUSED
    assert "add --seconds N" in capfd.readouterr().err and not list(tmp_path.iterdir())


def test_an_answer_that_came_later_tells_how_long_its_ask_was_kept(flight: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answer = next(each for each in read_recording(flight).messages if each.kind == "answer")
    code, out, _ = view(capfd, str(flight), "--at", str(answer.number))
    assert code == exit_codes.OK and "after the ask was kept: answered" in out and "never handled" not in out


def test_programs_get_a_summary_and_one_moment(flight: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = view(capfd, str(flight), "--json")
    summary: dict[str, Any] = json.loads(out)
    assert code == exit_codes.OK and summary["models"] == ["toy"] and summary["first"] == 1 and summary["missing"] == 0
    generate = next(each for each in read_recording(flight).messages if each.message == "Generate")
    _, out, _ = view(capfd, str(flight), "--json", "--at", str(generate.number))
    moment = json.loads(out)
    assert moment["record"]["message"] == "Generate"
    assert {actor["name"]: actor.get("handling", "") for actor in moment["actors"]}["queue:toy"] == "Generate"


def test_people_see_the_tree_at_a_message(flight: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generate = next(each for each in read_recording(flight).messages if each.message == "Generate")
    code, out, _ = view(capfd, str(flight), "--at", str(generate.number))
    assert code == exit_codes.OK
    assert f"#{generate.number} of #1 to #" in out
    assert "ask Generate" in out and "to queue:toy" in out
    assert "queue:toy  handles Generate for" in out
    assert out.index("system") < out.index("registry") < out.rindex("queue:toy")


def test_a_list_has_a_line_for_each_record_that_matches(flight: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = view(capfd, str(flight))
    recording = read_recording(flight)
    assert out.count("\n") == len(recording.records) + 1
    assert "begins at #1" in out
    _, out, _ = view(capfd, str(flight), "--filter", "generate answered")
    assert out.count("\n") == 4


def test_a_replay_decides_in_the_same_way(flight: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = view(capfd, str(flight), "--replay")
    assert code == exit_codes.OK and "all in the same way; 0 were skipped" in out
    code, out, _ = view(capfd, str(flight), "--replay", "--json")
    assert json.loads(out)["equal"] is True and json.loads(out)["differences"] == []


def test_a_replay_that_differs_says_where_and_ends_with_1(
    flight: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed"
    changed.write_bytes(flight.read_bytes().replace(b'["seat",', b'["wait",', 1))
    code, out, _ = view(capfd, str(changed), "--replay")
    assert code == exit_codes.REFUSED and "queue:toy decided in another way at #" in out
    code, out, _ = view(capfd, str(changed), "--replay", "--json")
    assert code == exit_codes.REFUSED and json.loads(out)["differences"][0]["queue"] == "queue:toy"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nowhere",), "there is no file nowhere"),
        (("FLIGHT", "--at", "999999"), "#999999 is not in this recording: it begins at #1"),
        (("CUT",), "truncated"),
        (("NONE",), "no flight recording"),
    ],
)
def test_what_cannot_be_viewed_is_refused_in_one_line(
    flight: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    cut, none = tmp_path / "cut", tmp_path / "none"
    cut.write_bytes(b"".join(flight.read_bytes().splitlines(keepends=True)[:-1]))
    none.write_text("hello\n")
    places = {"FLIGHT": str(flight), "CUT": str(cut), "NONE": str(none)}
    code, _, err = view(capfd, *(places.get(word, word) for word in words))
    assert code == exit_codes.REFUSED
    assert why in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["", ".", "pipe", "link to the pipe", "flight"])
def test_what_is_there_already_is_never_replaced_unasked(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to the pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "flight").write_text("an incident")
    assert main(["console", "record", str(tmp_path / name) if name else name]) == exit_codes.REFUSED
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and ("--force" in err) == (name == "flight")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "flight").read_text() == "an incident"


def test_ctrl_c_completes_a_recording_and_a_hangup_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "target").write_text("an older recording")
    (folder / "link").symlink_to(folder / "target")
    with running(tmp_path, "serve", "--port", "0", "toy") as server:
        server.read_until("curl ")
        for name, number, code in (("link", signal.SIGINT, exit_codes.OK), ("lost", signal.SIGHUP, 128 + signal.SIGHUP)):
            with running(tmp_path, "console", "record", str(folder / name), "--seconds", "600", "--force") as child:
                child.wait_for_error("Ctrl-C ends it early")
                child.process.send_signal(number)
                assert child.end() == code, child.errors
    assert sorted(path.name for path in folder.iterdir()) == ["link", "target"]
    assert (folder / "link").is_symlink()
    assert read_recording(folder / "target").ending.missing == 0


def test_keys_step_through_it(flight: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    typed = iter(["n", "", "p", "g 1", "g 99999", "g x", "f Generate", "n", "f", "what", "p", "q", "never"])
    prompts: list[str] = []

    def read(prompt: str, hint: str, *, interrupted: str = "") -> str:
        prompts.append(prompt)
        return next(typed)

    monkeypatch.setattr(view_command, "read_line", read)
    monkeypatch.setattr(view_command, "is_terminal", lambda stream: True)
    code, out, err = view(capfd, str(flight))
    assert code == exit_codes.OK and next(typed) == "never"
    assert prompts[:4] == ["#1> ", "#2> ", "#3> ", "#2> "] and prompts[4] == "#1> "
    assert prompts[7].endswith("f Generate> ")
    assert "g takes the number of a record, as in: g 12, not 'x'" in err
    assert "#99999 is not in this recording" in err and err.count("n next") == 2
    assert "handles Generate" in out

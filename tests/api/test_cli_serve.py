"""`tripower serve` as a process: what it says, what it refuses, how it ends."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.children import COMMAND, Child, environment, running, tripower
from tripower.api.cli import exit_codes
from tripower.api.cli.serve_banner import is_loopback

PUBLIC = "server.allow_public_without_keys=true"


@contextmanager
def serving(home: Path, *arguments: str) -> Iterator[tuple[Child, str, str]]:
    """A server on a free port, once it is ready: the child, its address and its banner."""
    with running(home, "serve", "--port", "0", *arguments) as child:
        text = child.read_until("curl ")
        match = re.search(r"http://[^\s]+", text)
        assert match is not None
        yield child, match[0], text


def ask(url: str, body: dict[str, Any], path: str = "/v1/completions") -> Any:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@contextmanager
def streaming(url: str, model: str, tokens: int = 2000) -> Iterator[socket.socket]:
    """A stream that has begun; more of it can be read from the socket."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({"model": model, "prompt": "xy", "stream": True, "max_tokens": tokens, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall((head + body).encode())
        received = b""
        while b"data: " not in received:
            received += connection.recv(4096)
        yield connection


def rest_of(connection: socket.socket) -> str:
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received.decode()


def test_the_banner_says_what_is_served_and_its_curl_line_works(tmp_path: Path) -> None:
    with serving(tmp_path, "mine=toy", "toy", "--set", "scheduler.batch_members=3", "--set", "scheduler.waiting=5") as (
        _,
        url,
        text,
    ):
        assert f"tripower 0.1.0 listens at {url}" in text
        for line in (
            "model     mine, context 8192",
            "model     toy,",
            "engine    toy, ",
            "3 answer at the same time, 5 may wait",
        ):
            assert line in text
        assert re.search(r"keys +off\n", text)
        assert f"page      {url}/ui\n" in text
        curl = next(line for line in text.splitlines() if line.strip().startswith("curl "))
        answered = subprocess.run(shlex.split(curl), capture_output=True, check=True, timeout=60)
        answer = json.loads(answered.stdout)
        assert answer["model"] == "mine"
        assert answer["choices"][0]["message"]["content"]


def test_a_name_with_a_quote_still_gives_a_line_that_can_be_pasted(tmp_path: Path) -> None:
    with serving(tmp_path, "it's=toy") as (_, _url, text):
        curl = next(line for line in text.splitlines() if line.strip().startswith("curl "))
        assert json.loads(shlex.split(curl)[-1])["model"] == "it's"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_work_a_signal_ends_it_at_once(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path, "toy") as (child, url, _):
        assert ask(url, {"model": "toy", "prompt": "x", "max_tokens": 3})["usage"]["completion_tokens"] <= 3
        child.process.send_signal(number)
        assert child.end() == exit_codes.OK
    assert "stopped\n" in child.errors
    said = "".join(child.errors)
    assert 0 < said.index("POST /v1/completions 200") < said.index("stopped\n")  # the last word comes last
    assert "Traceback" not in "".join(child.errors)


def test_a_running_answer_may_finish_and_new_work_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "toy:10000") as (child, url, _), streaming(url, "toy:10000", tokens=120) as connection:
        child.process.send_signal(signal.SIGTERM)
        child.wait_for_error("1 answer may take up to 30 s to finish; a second signal stops at once")
        text = rest_of(connection)
        assert '"finish_reason":"length"' in text
        assert "data: [DONE]" in text
        assert child.end() == exit_codes.OK
        with pytest.raises(OSError, match=r"refused|reset"):
            ask(url, {"model": "toy:10000", "prompt": "x"})


def test_a_second_signal_cuts_answers_off_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, "toy:50000") as (child, url, _), streaming(url, "toy:50000") as connection:
        child.process.send_signal(signal.SIGTERM)
        child.wait_for_error("a second signal stops at once")
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == exit_codes.FORCED
        assert '"code":"draining"' in rest_of(connection)
    assert "stopped; 1 cut off\n" in child.errors


def test_an_answer_that_outlasts_the_drain_is_cut_off(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "toy:50000", "--set", "server.drain_timeout_s=0.3") as (child, url, _),
        streaming(url, "toy:50000") as connection,
    ):
        child.process.send_signal(signal.SIGTERM)
        assert '"code":"draining"' in rest_of(connection)
        assert child.end() == exit_codes.FORCED


def test_a_port_in_use_is_told_before_anything_else_happens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = tripower(tmp_path / "home", "serve", "smollm2", "--port", str(port))
    assert finished.returncode == exit_codes.REFUSED
    assert finished.stderr == (
        f"tripower: port {port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port (0 takes a free one)\n"
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "there is no model to serve: name one, as in `tripower serve smollm2`"),
        (["nonsense"], "no model of the store has this name"),
        (["toy", "toy:fast"], "toy:fast cannot be loaded: a toy is called toy or toy:MICROSECONDS"),
        (["./missing.gguf"], "there is no file"),
        (["toy", "--host", "192.0.2.1", "--set", PUBLIC], "is no address of this machine"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(arguments: list[str], text: str, tmp_path: Path) -> None:
    finished = tripower(tmp_path, "serve", "--port", "0", "--quiet", *arguments)
    assert finished.returncode == exit_codes.REFUSED
    assert finished.stdout == ""
    assert text in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_two_models_of_one_name_are_bad_usage(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "serve", "--port", "0", "toy", "toy=toy:5")
    assert finished.returncode == exit_codes.USAGE
    assert "two models are called toy" in finished.stderr


def test_a_client_cannot_name_a_file_of_the_server(smollm2_path: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "toy") as (_, url, _):
        for name in (str(smollm2_path), "toy:5", "x=toy"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(url, {"model": name, "prompt": "x"})
            assert caught.value.code == 404
            caught.value.close()


def test_ps_shows_a_running_server(tmp_path: Path) -> None:
    with serving(tmp_path, "toy:50000", "idle=toy") as (_, url, _):
        ask(url, {"model": "idle", "prompt": "x", "max_tokens": 2})
        with streaming(url, "toy:50000"):
            shown = tripower(tmp_path, "ps", "--url", url)
            figures = json.loads(tripower(tmp_path, "ps", "--json", variables={"TRIPOWER_URL": url}).stdout)
    assert shown.returncode == 0
    assert re.search(r"^idle +loaded +8192 +- +- +- +- +- +\S+ +1$", shown.stdout, re.MULTILINE)
    assert shown.stdout.endswith(f"{url} is ok; seats busy 1, waiting 0\n")
    assert (figures["status"], figures["running"], figures["waiting"]) == ("ok", 1, 0)
    assert {model["name"]: model["completed"] for model in figures["models"]} == {"idle": 1, "toy:50000": 0}


def test_ps_without_a_server_says_how_to_start_one(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "ps", "--url", "http://127.0.0.1:9")
    assert finished.returncode == exit_codes.NO_CONNECTION
    assert finished.stderr == (
        "tripower: no server answers at http://127.0.0.1:9: start one with `tripower serve MODEL`, or name another with --url\n"
    )


def test_run_and_chat_ask_a_server(tmp_path: Path) -> None:
    with serving(tmp_path, "toy") as (_, url, _):
        options = ("--seed", "7", "--temperature", "0.5", "--max-tokens", "20")
        there = tripower(tmp_path, "run", "toy", "hi", *options, "--url", url)
        here = tripower(tmp_path, "run", "toy", "hi", *options)
        assert there.stdout == here.stdout
        assert "first token after" in there.stderr
        chat = tripower(tmp_path, "chat", "toy", *options, "--url", f"{url}/v1", text="hi\n")
        assert chat.stdout == here.stdout
        refused = tripower(tmp_path, "run", "other", "hi", "--url", url)
        assert (refused.returncode, refused.stderr.startswith("tripower: 404 model_not_found: ")) == (1, True)
        late = tripower(tmp_path, "run", "toy", "hi", "--url", url, "--max-tokens", "99999")
        assert late.stderr.startswith("tripower: 400 context_length_exceeded: ")


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_public_address_without_keys_is_pointed_out(tmp_path: Path) -> None:
    with serving(tmp_path, "toy", "--host", "0.0.0.0", "--set", PUBLIC) as (_, _url, text):
        assert "keys      off: everyone who can reach this address may use it" in text


def test_a_public_address_without_keys_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    done = tripower(tmp_path, "serve", "toy", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == exit_codes.REFUSED
    assert "no API keys" in done.stderr and "server.allow_public_without_keys" in done.stderr


def test_a_unix_socket_may_be_all_there_is_and_its_curl_line_works(tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    with running(tmp_path, "serve", "toy", "--set", f"server.unix_socket={path}", "--set", "server.tcp=false") as child:
        text = child.read_until("curl ")
        assert f"listens at unix:{path}" in text
        words = shlex.split(text[text.index("curl ") :].strip())
        assert words[1:3] == ["--unix-socket", str(path)]
        if shutil.which("curl"):
            answer = subprocess.run([*words, "-s"], capture_output=True, check=True, timeout=60)
            assert json.loads(answer.stdout)["choices"]
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == exit_codes.OK
    assert not path.exists()


@pytest.mark.parametrize(
    "closed",
    [
        *("<&- >&- 2>&-", ">/dev/full 2>&1"),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("<&-", ">&-", "2>&-", ">/dev/full", "2>/dev/full")),
    ],
)
def test_streams_that_take_nothing_do_not_end_a_service(closed: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = shlex.join([*COMMAND, "serve", "--port", str(port), "toy"])
    with subprocess.Popen(
        ["sh", "-c", f"exec {command} {closed}"],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            assert ask(url, {"prompt": "x", "max_tokens": 1})["usage"]["completion_tokens"] == 1
            process.terminate()
            assert process.wait(60) == exit_codes.OK
        finally:
            process.kill()


def test_a_log_that_nobody_reads_any_more_does_not_cut_off_answers(tmp_path: Path) -> None:
    """As in `tripower serve toy 2>&1 | tee log` and Ctrl-C, which ends `tee` first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*COMMAND, "serve", "--port", str(port), "toy:5000"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            with streaming(url, "toy:5000", tokens=100) as connection:
                assert process.stdout is not None
                process.stdout.close()
                process.terminate()
                assert "[DONE]" in (rest := rest_of(connection))
                assert '"finish_reason":"length"' in rest
            assert process.wait(60) == exit_codes.OK
        finally:
            process.kill()


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=60):
                return
        except OSError:  # not listening yet, or not ready yet
            time.sleep(0.05)
    raise AssertionError(f"the command ended with {process.returncode}")

"""`tripower doctor`: what it finds on machines that are well, and on those that are not."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.children import running, tripower
from tripower.api.cli import doctor
from tripower.api.cli.doctor import Finding, defaults, machine, report, settings, software, store
from tripower.api.cli.doctor_listener import listener
from tripower.runtime.configuration import Configuration, ServerSettings, load_configuration
from tripower.runtime.host import HostLimits
from tripower.runtime.store import Store

GIB = 1 << 30
HOST = HostLimits(
    cores=2, cores_reason="two of them", processors=4, memory_total=16 * GIB, memory_available=8 * GIB, memory_reason="as it is",
    processor_name="A Processor", features=("avx", "avx2"),
)  # fmt: skip


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_machine_that_is_well_gets_a_report_and_0(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "doctor", "--set", f"server.port={free_port()}", "--set", "scheduler.waiting=7")
    assert finished.returncode == 0, finished.stdout
    for text in (
        "\nsoftware\n",
        "  torch ",
        "\ndefaults\n",
        "  batch members ",
        "\nstore\n",
        str(tmp_path),
        "\nlistener\n",
        "all is well",
    ):
        assert text in finished.stdout
    assert "scheduler.waiting" in finished.stdout
    assert "command line; the default is -1" in finished.stdout


def test_json_has_the_same_findings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finished = tripower(tmp_path, "doctor", "--json", "--set", f"server.port={taken.getsockname()[1]}")
    answer: dict[str, Any] = json.loads(finished.stdout)
    assert (finished.returncode, answer["ok"]) == (1, False)
    (wrong,) = [finding for finding in answer["findings"] if finding["state"] == "fail"]
    assert wrong["part"] == "listener"
    assert "choose another with --port" in wrong["reason"]


def test_a_server_of_ours_on_the_port_is_no_fault(tmp_path: Path) -> None:
    with running(tmp_path, "serve", "toy", "--port", "0") as child:
        url = next(word for word in child.read_until("listens at").split() if word.startswith("http"))
        (finding,) = listener(Configuration(server=ServerSettings(port=int(url.rpartition(":")[2]))))
    assert (finding.state, finding.reason) == ("note", "a tripower server answers there")


def test_little_memory_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = HostLimits(
        cores=1, cores_reason="one", processors=1, memory_total=GIB, memory_available=GIB // 4, memory_reason="a small container",
        processor_name="Old", features=(),
    )  # fmt: skip
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = by_name(machine(tight))
    assert (found["memory"].state, found["AVX2"].state) == ("fail", "note")
    assert "a small container" in found["memory"].reason
    assert "AVX2" not in by_name(machine(HOST))


def test_defaults_have_their_reasons() -> None:
    found = by_name(defaults(HOST, Configuration()))
    assert (found["threads"].value, found["batch members"].value, found["waiting"].value) == ("2", "16", "64")
    assert all(finding.reason for finding in found.values())


def test_a_library_that_is_missing_or_broken_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("torch", "no-such-library", "trio"))
    monkeypatch.setitem(sys.modules, "torch", None)  # makes its import fail
    found = by_name(software())
    assert (found["torch"].value, found["torch"].state) == ("broken", "fail")
    assert (found["no-such-library"].value, found["no-such-library"].state) == ("missing", "fail")
    assert found["trio"].state == "ok"


def test_only_what_was_set_is_listed() -> None:
    assert list(settings(Configuration())) == []
    given = load_configuration(file=None, environment={"TRIPOWER_HOME": "/nowhere"}, flags={"server.port": 1})
    (finding,) = settings(given)
    assert (finding.name, finding.value) == ("server.port", "1")


def test_a_store_that_is_not_there_yet_is_well(tmp_path: Path) -> None:
    found = by_name(store(Store(tmp_path / "not" / "yet")))
    assert found["place"].reason == "0 models, 0 B"
    assert found["models"].state == "note"
    assert not (tmp_path / "not").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_is_in_the_way(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert by_name(store(Store(tmp_path)))["access"].state == "fail"


def test_what_needs_attention_is_marked() -> None:
    text = report(
        [Finding("a", "one", "1"), Finding("a", "two", "2", "why", "note"), Finding("b", "three", "3", "cure", "fail")]
    )
    assert text.splitlines() == [
        "a",
        "  one    1",
        "! two    2  (why)",
        "",
        "b",
        "x three  3  (cure)",
        "",
        "1 thing in the way, marked x",
    ]

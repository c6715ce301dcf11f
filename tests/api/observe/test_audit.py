"""The audit log tells what was done, cannot be changed unnoticed, and never holds anybody up."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.api.auth.test_authentication import KEY, bearer, key_file
from tests.api.fake_runtime import HELLO, Script, failed
from tests.api.serving import ASK, CHAT, serving
from tripower.api.cli import main
from tripower.api.http.observe import audit
from tripower.api.http.observe.audit import AuditLog
from tripower.api.http.observe.audit_chain import AuditEvent, BrokenChain, read
from tripower.api.http.observe.keepers import Keepers, open_keepers
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

SECRET = "marzipan"


def written(path: Path, count: int) -> list[AuditEvent]:
    with AuditLog(path) as log:
        for number in range(count):
            log.record("chat", "success", request_id=f"r{number}", tokens=number)
    return list(read(path))


def test_lines_follow_each_other_and_a_later_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 3)
    events = written(path, 2)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.request_id for event in events] == ["r0", "r1", "r2", "r0", "r1"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["change", "remove", "swap", "torn"])
def test_whatever_is_changed_is_noticed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "change":
            lines[1] = lines[1].replace(b'"tokens":1', b'"tokens":7')
        case "remove":
            del lines[1]
        case "swap":
            lines[1], lines[2] = lines[2], lines[1]
        case "torn":
            lines[3] = lines[3][:20]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenChain):
        list(read(path))


@pytest.mark.parametrize("content", [b"notes\n", b'{"seq":1}\n', b'{"seq":1'])
def test_another_kind_of_file_is_not_appended_to(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(BrokenChain):
        AuditLog(path)
    assert path.read_bytes() == content


async def test_a_request_is_one_line_without_its_text_and_looking_around_is_none(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    asking = ASK | {"messages": [{"role": "user", "content": SECRET}]}
    with open_keepers(ServerSettings(audit_file=str(path))) as keepers:
        async with serving(HELLO, Script([failed()]), keepers=keepers) as server:
            assert (await server.ask(CHAT, asking, headers={"x-request-id": "one"})).status == 200
            assert (await server.ask(CHAT, asking, headers={"x-request-id": "two"})).status == 500
            for path_asked in ("/health", "/metrics", "/v1/models", f"/{SECRET}"):
                await server.ask(path_asked)
            assert (await server.ask("/health", headers={"host": "evil.example"})).status == 403
    text = path.read_text()
    assert SECRET not in text
    events = list(read(path))
    assert [(event.action, event.status, event.reason, event.request_id) for event in events[:3]] == [
        ("startup", "success", "", ""),
        ("chat", "success", "", "one"),
        ("chat", "failure", "device_failed", "two"),
    ]
    assert (events[1].model, events[1].tokens) == ("fake", 6)
    assert [(event.action, event.reason) for event in events[3:]] == [("auth_failure", "host_not_allowed"), ("shutdown", "")]


async def test_a_caller_is_told_by_its_hash_and_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    caplog.set_level("INFO", "tripower")
    with open_keepers(ServerSettings(audit_file=str(path))) as keepers:
        async with serving(HELLO, keepers=keepers, auth=key_file(tmp_path, KEY, more='name = "team a"')) as server:
            assert (await server.ask(CHAT, ASK, headers=bearer(KEY))).status == 200
    who = f"key-{hashlib.sha256(KEY.encode()).hexdigest()[:12]} (team a)"
    assert [event.identity for event in read(path)] == ["", who, ""]
    assert f", {who}" in caplog.text


@pytest.mark.parametrize("denies", [True, False])
async def test_what_a_full_disk_means_for_work_is_the_operators_choice(
    tmp_path: Path, denies: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with AuditLog(tmp_path / "audit.jsonl") as log:
        full = True

        def write(descriptor: int, data: bytes) -> int:
            if full:
                raise OSError(28, "No space left on device")
            return os.write(descriptor, data)

        monkeypatch.setattr(audit, "os", type("Disk", (), dict(vars(os)) | {"write": staticmethod(write)}))
        monkeypatch.setattr(audit, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(audit, "RETRY_SECONDS_MAX", 0.01)
        monkeypatch.setattr(audit, "EVENTS_MAX", 1)
        log.record("chat", "success")
        while not log.failing:
            os.sched_yield()
        async with serving(HELLO, keepers=Keepers(audit=log, audit_denies=denies)) as server:
            answer = await server.ask(CHAT, ASK)
            assert answer.status == (503 if denies else 200)
            assert (await server.ask("/health")).status == 200
            ready = await server.ask("/ready")
            assert (ready.status, "audit log" in ready.body.decode()) == ((503, True) if denies else (200, False))
            full = False  # and nobody asks for anything
            while log.failing:
                os.sched_yield()
            monkeypatch.setattr(audit, "EVENTS_MAX", 100)
            assert (await server.ask("/ready")).status == 200
            assert (await server.ask(CHAT, ASK)).status == 200
            assert "tripower_audit_failures_total 1.0" in (await server.ask("/metrics")).body.decode()
    assert [(event.action, event.count or 0) for event in read(tmp_path / "audit.jsonl")] == [
        ("chat", 0),
        ("lost", 1),
        ("chat", 0),
    ]
    assert log.lost == 1
    assert main(["audit", str(tmp_path / "audit.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert "lost 1 events failure" in shown
    assert shown.endswith("3 events, none changed or taken out; 1 more could not be written\n")


def test_a_second_server_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path), pytest.raises(InvalidConfiguration, match=str(path)):
        AuditLog(path)
    AuditLog(path).close()
    os.mkfifo(tmp_path / "fifo")
    for odd in (tmp_path / "fifo", Path(os.devnull)):
        with pytest.raises((InvalidConfiguration, OSError)), open_keepers(ServerSettings(audit_file=str(odd))):
            pass


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nforged line", "a success, key-of-somebody", "\ud800", '"}{"'])
def test_a_hostile_name_of_a_model_is_one_event_on_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        log.record("chat", "failure", model=name)
    (event,) = read(path)
    assert event.model == name.encode(errors="replace").decode()
    assert main(["audit", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and shown[0].isprintable() and repr(event.model) in shown[0]


def test_a_place_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="audit_file"), open_keepers(ServerSettings(audit_file=str(tmp_path))):
        pass


def test_the_command_shows_events_and_finds_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 2)
    assert main(["audit", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "chat success" in shown and shown.endswith("2 events, none changed or taken out\n")
    path.write_text(path.read_text().replace("r0", "r9"))
    assert main(["audit", "--quiet", str(path)]) == 1
    assert "line 2" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "none")]) == 1


def test_an_event_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 1)
    assert json.loads(path.read_text())["prev_sha256"] == "0" * 64

"""`tripower key`, and a server that is told by SIGHUP that its keys have changed."""

from __future__ import annotations

import hashlib
import signal
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.api.children import tripower
from tests.api.test_cli_serve import serving
from tripower.api.cli import exit_codes, main
from tripower.api.cli.doctor import keys
from tripower.api.cli.serve_banner import keys_line
from tripower.api.http.auth.keys import read_key_file
from tripower.runtime.configuration import AuthSettings, Configuration
from tripower.runtime.kernel import InvalidConfiguration

KEY, OTHER = "tp-the-first-key", "tp-another-key"


def write_keys(folder: Path, *wanted: str) -> Path:
    path = folder / "keys.toml"
    path.write_text("".join(f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n' for key in wanted))
    path.chmod(0o600)
    return path


def status(url: str, key: str) -> int:
    request = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_new_key_fits_the_lines_that_come_with_it(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "key", "new", "--name", "team a", "--admin")
    assert finished.returncode == exit_codes.OK
    key = finished.stderr.strip()  # standard output is no terminal here, and what is redirected is a file of keys
    assert len(key) > 40 and key not in finished.stdout
    entry = tomllib.loads(finished.stdout)["key"][0]
    assert entry == {"name": "team a", "sha256": hashlib.sha256(key.encode()).hexdigest(), "admin": True}


def test_what_is_redirected_is_a_file_that_can_be_used(tmp_path: Path) -> None:
    lines = [tripower(tmp_path, "key", "new", "--name", name).stdout for name in ("a", "b")]
    path = tmp_path / "keys.toml"
    path.write_text("".join(lines))
    path.chmod(0o600)
    assert [entry.name for entry in read_key_file(path)] == ["a", "b"]


def test_a_person_at_a_terminal_sees_key_and_lines_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tripower.api.cli.key.is_terminal", lambda stream: True)
    assert main(["key", "new"]) == exit_codes.OK
    said = capsys.readouterr()
    assert said.out.startswith("tp-") and "[[key]]" in said.out and not said.err


@pytest.mark.parametrize(
    ("text", "says"), [("[[key]]\ntp-secret\n", "no valid TOML at line 2"), ("[[key]]\nname = ", "no valid TOML at its end")]
)
def test_a_broken_file_of_keys_names_the_line_and_shows_nothing_of_it(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidConfiguration, match=says) as caught:
        read_key_file(path)
    assert "secret" not in str(caught.value)


def test_a_name_that_the_file_could_not_hold_is_refused(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "key", "new", "--name", 'a"b')
    assert finished.returncode == exit_codes.USAGE and "at most 64" in finished.stderr


def test_banner_and_doctor_say_whether_there_are_keys(tmp_path: Path) -> None:
    configuration = Configuration(auth=AuthSettings(keys_file=str(write_keys(tmp_path, KEY, OTHER))))
    assert keys_line(Configuration()) == "off" and keys_line(configuration) == "on: 2 of them, none for administration"
    assert [finding.value for finding in keys(configuration)] == ["2"]
    (tmp_path / "keys.toml").chmod(0o644)
    assert [finding.state for finding in keys(configuration)] == ["fail"]
    assert [finding.value for finding in keys(Configuration())] == ["off"]


def test_a_server_refuses_keys_that_cannot_be_used_before_it_opens_anything(tmp_path: Path) -> None:
    path = write_keys(tmp_path, KEY)
    path.chmod(0o644)
    finished = tripower(tmp_path, "serve", "toy", "--port", "0", "--set", f"auth.keys_file={path}")
    assert finished.returncode == exit_codes.USAGE and "chmod 600" in finished.stderr


def test_a_hangup_reads_the_keys_again_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = write_keys(tmp_path, KEY)
    with serving(tmp_path, "toy", "--set", f"auth.keys_file={path}") as (child, url, text):
        assert "keys      on: 1 of them" in text
        assert (status(url, KEY), status(url, OTHER)) == (200, 401)
        write_keys(tmp_path, OTHER)
        child.process.send_signal(signal.SIGHUP)
        child.wait_for_error("1 API key in force")
        assert (status(url, KEY), status(url, OTHER)) == (401, 200)
        path.write_text("[[")
        child.process.send_signal(signal.SIGHUP)
        child.wait_for_error("the old API keys stay in force")
        assert (status(url, KEY), status(url, OTHER)) == (401, 200)

"""`tripower key`, and a server that is told by SIGHUP that its keys have changed."""

from __future__ import annotations

import hashlib
import signal
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

from tests.api.children import tripower
from tests.api.test_cli_serve import serving
from tripower.api.cli import exit_codes
from tripower.api.cli.doctor import keys
from tripower.api.cli.serve_banner import keys_line
from tripower.runtime.configuration import AuthSettings, Configuration

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
    key, _, lines = finished.stdout.partition("\n")
    assert len(key) > 40
    entry = tomllib.loads(lines)["key"][0]
    assert entry == {"name": "team a", "sha256": hashlib.sha256(key.encode()).hexdigest(), "admin": True}


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

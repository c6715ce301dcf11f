"""Keys from the file and from the environment, and how much each may ask."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tripower.api.cli.key import key_file_lines
from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.auth.keys import VARIABLE, keys_configured, load_keys
from tripower.api.http.auth.meters import Meter, duration
from tripower.runtime.configuration import AuthSettings, Configuration
from tripower.runtime.kernel import InvalidConfiguration, Overloaded

KEY, OTHER = "tp-the-first-key", "tp-another-key"


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def key_file(folder: Path, text: str, mode: int = 0o600) -> AuthSettings:
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(mode)
    return AuthSettings(keys_file=str(path), requests_per_minute=60)


def test_without_a_file_and_a_variable_keys_are_off() -> None:
    assert load_keys(AuthSettings(), {}) is None
    assert load_keys(AuthSettings(), {VARIABLE: " , "}) is None
    assert not keys_configured(Configuration(), {}) and not keys_configured(Configuration(), {VARIABLE: " , "})


def test_keys_that_were_asked_for_are_on_even_if_there_are_none(tmp_path: Path) -> None:
    settings = key_file(tmp_path, "")
    assert load_keys(settings, {}) == ()
    assert Keyring(settings, {}).enabled
    assert keys_configured(Configuration(auth=settings), {}) and keys_configured(Configuration(), {VARIABLE: KEY})


def test_the_variable_holds_plain_keys_and_hashes() -> None:
    keys = load_keys(AuthSettings(tokens_per_minute=9), {VARIABLE: f" {KEY} ,, sha256:{sha(OTHER)}"})
    assert keys is not None and [key.digest.hex() for key in keys] == [sha(KEY), sha(OTHER)]
    assert [key.identity for key in keys] == [f"key-{sha(KEY)[:12]}", f"key-{sha(OTHER)[:12]}"]
    assert all(key.tokens_per_minute == 9 and not key.admin for key in keys)


def test_the_file_says_what_a_key_may_do_and_wins_over_the_variable(tmp_path: Path) -> None:
    text = key_file_lines(KEY, name="team a", admin=True) + "\nweight = 2\nconcurrency = 3\nrequests_per_minute = 0\n"
    keys = load_keys(key_file(tmp_path, text), {VARIABLE: KEY})
    assert keys is not None and len(keys) == 1
    key = keys[0]
    assert (key.name, key.admin, key.weight, key.concurrency, key.requests_per_minute) == ("team a", True, 2.0, 3, 0)


def test_no_key_is_anywhere_in_plain_text(tmp_path: Path) -> None:
    ring = Keyring(key_file(tmp_path, f'[[key]]\nsha256 = "{sha(OTHER)}"\n'), {VARIABLE: KEY})
    assert ring.find(KEY.encode()) is not None
    assert KEY not in repr(ring.keys) + repr(ring.find(KEY.encode()))


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o644])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidConfiguration, match="chmod 600"):
        load_keys(key_file(tmp_path, "", mode), {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'[[key]]\nkey = "{KEY}"\n', "tripower key new"),
        ('[[key]]\nsha256 = "SECRET"\n', "tripower key new"),
        (f'[[key]]\nsha256 = "{sha(KEY)}"\nweight = 0\n', "weight"),
        (f'[[key]]\nsha256 = "{sha(KEY)}"\nwidth = 1\n', "width"),
        (f'[[key]]\nsha256 = "{sha(KEY)}"\n' * 2, "twice"),
        ("[[key]\n", "no valid TOML"),
        ("\udcff", "no valid TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(0o600)
    with pytest.raises(InvalidConfiguration, match=why) as caught:
        load_keys(AuthSettings(keys_file=str(path)), {})
    assert KEY not in caught.value.message and "SECRET" not in caught.value.message


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidConfiguration, match="cannot be used"):
            load_keys(AuthSettings(keys_file=str(path)), {})


@pytest.mark.parametrize("text", ["short", "sha256:abc", "sha256:" + "g" * 64])
def test_a_variable_that_is_wrong_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=VARIABLE) as caught:
        load_keys(AuthSettings(), {VARIABLE: text})
    assert text not in caught.value.message


def test_only_the_very_key_is_found() -> None:
    ring = Keyring(AuthSettings(), {VARIABLE: f"{KEY},{OTHER}"})
    found = ring.find(OTHER.encode())
    assert found is not None and found.key.digest.hex() == sha(OTHER) and not found.caller.alone
    for wrong in ("", KEY + " ", KEY[:-1], KEY.upper(), sha(KEY), "x" * 100_000):
        assert ring.find(wrong.encode()) is None


def test_every_stored_hash_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("tripower.api.http.auth.keyring.hmac.compare_digest", compare)
    ring = Keyring(AuthSettings(), {VARIABLE: ",".join(f"tp-key-number-{number}" for number in range(5))})
    for key in (b"tp-key-number-0", b"tp-key-number-4", b"tp-unknown"):
        compared.clear()
        ring.find(key)
        assert len(compared) == 5


def test_a_reload_takes_keys_away_and_brings_new_ones_and_keeps_what_was_used(tmp_path: Path) -> None:
    entries = {key: f'[[key]]\nsha256 = "{sha(key)}"\n' for key in (KEY, OTHER, "tp-third-key")}
    settings = key_file(tmp_path, entries[KEY] + entries[OTHER])
    ring = Keyring(settings, {})
    before = ring.find(KEY.encode())
    key_file(tmp_path, entries[KEY] + entries["tp-third-key"])
    assert ring.take(ring.read()) == 2
    after = ring.find(KEY.encode())
    assert before is not None and after is not None and before.meter is after.meter
    assert ring.find(OTHER.encode()) is None and ring.find(b"tp-third-key") is not None
    key_file(tmp_path, entries[KEY] + "requests_per_minute = 1\n")
    ring.take(ring.read())
    limited = ring.find(KEY.encode())
    assert limited is not None and limited.meter.limits == (1, 0) and limited.caller.alone


def test_a_broken_file_keeps_the_old_keys(tmp_path: Path) -> None:
    ring = Keyring(key_file(tmp_path, f'[[key]]\nsha256 = "{sha(KEY)}"\n'), {})
    key_file(tmp_path, "not toml")
    with pytest.raises(InvalidConfiguration):
        ring.take(ring.read())
    assert ring.find(KEY.encode()) is not None
    (tmp_path / "keys.toml").unlink()
    with pytest.raises(InvalidConfiguration):
        ring.take(ring.read())
    assert ring.find(KEY.encode()) is not None


def test_requests_beyond_the_minute_wait_for_the_bucket() -> None:
    meter = Meter(2, 0, now=0.0)
    meter.admit(0.0)
    assert dict(meter.headers(0.0)) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"30s",
    }
    meter.admit(0.0)
    with pytest.raises(Overloaded) as caught:
        meter.admit(10.0)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.retry_after == pytest.approx(20.0)
    meter.admit(30.0)


def test_tokens_may_be_owed_and_are_paid_with_waiting() -> None:
    meter = Meter(0, 60, now=0.0)
    meter.admit(0.0)
    meter.spend(50, 0.0)
    meter.admit(0.0)
    meter.spend(40, 0.0)
    assert dict(meter.headers(0.0))[b"x-ratelimit-remaining-tokens"] == b"0"
    with pytest.raises(Overloaded) as caught:
        meter.admit(0.0)
    assert caught.value.retry_after == 31.0
    meter.admit(31.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.0121, "13ms"), (0.9999, "1s"), (1.2, "2s"), (60, "1m0s"), (359.5, "6m0s")]
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""API keys as they are kept: by their SHA-256, with a name, and what each may do.

They come from a file (`auth.keys_file`, TOML, `[[key]]` tables) and from `TRIPOWER_API_KEYS` (comma separated, plain or as
`sha256:<hex>`). A plain key in the file is refused: a file lies about longer than an environment, and the line that `tripower key new`
prints holds the hash. A key has 256 random bits, so a plain hash of it can be inverted by nobody; a password would need more.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tripower.runtime.configuration import AuthSettings, Configuration
from tripower.runtime.kernel import InvalidConfiguration

VARIABLE = "TRIPOWER_API_KEYS"
HASHED = "sha256:"
FILE_BYTES_MAX = 1 << 20
KEYS_MAX = 4096
"""Every one is compared with every key that comes."""
KEY_CHARACTERS_MIN = 8
KEY_BYTES_MAX = 512
_PLACE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)\Z")
_FORBIDDEN_BITS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH

NAME = re.compile(r"\A[\w .:@/-]{0,64}\Z")
"""What a key may be called."""

Limit = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[key]]` of the file. A limit that is left out is the one of the settings, 0 is none."""

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    name: Annotated[str, Meta(pattern=NAME.pattern)] = ""
    admin: bool = False
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    concurrency: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    key: tuple[KeyEntry, ...] = ()


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. Its plain text is nowhere."""

    digest: bytes
    name: str = ""
    admin: bool = False
    weight: float = 1.0
    concurrency: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0

    @property
    def identity(self) -> str:
        """What the waiting room knows its holder by, and what records begin with; behind it they have the name."""
        return f"key-{self.digest.hex()[:12]}"


def digest_of(key: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(key).digest()


def keys_configured(configuration: Configuration, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody asked for keys: nobody gets in without one then, even if there turns out to be none. Reads no file."""
    return bool(configuration.auth.keys_file) or bool(environment.get(VARIABLE, "").strip(" ,"))


def load_keys(settings: AuthSettings, environment: Mapping[str, str] = os.environ) -> tuple[ApiKey, ...] | None:
    """The keys in force; None where keys are off. Blocks for one small file.

    Raises `InvalidConfiguration` for a file that is missing, open to others or wrong, and for a variable that is. Of a key that is
    in both places, the file says what it may do.
    """
    given = [each for each in environment.get(VARIABLE, "").split(",") if each.strip()]
    if not settings.keys_file and not given:
        return None
    keys: dict[bytes, ApiKey] = {}
    for text in given:
        digest = _digest_of_variable(text.strip())
        keys[digest] = _with_limits(KeyEntry(sha256=digest.hex()), settings)
    if settings.keys_file:
        entries = read_key_file(Path(settings.keys_file).expanduser())
        keys |= {key.digest: key for key in (_with_limits(entry, settings) for entry in entries)}
    if len(keys) > KEYS_MAX:
        raise InvalidConfiguration(f"there are {len(keys)} API keys, and at most {KEYS_MAX} can be checked in time")
    return tuple(keys.values())


def _digest_of_variable(text: str) -> bytes:
    if text.startswith(HASHED):
        try:
            digest = bytes.fromhex(text.removeprefix(HASHED))
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise InvalidConfiguration(f"{VARIABLE}: a hash is written sha256: and 64 hexadecimal digits", param=VARIABLE)
        return digest
    if len(text) < KEY_CHARACTERS_MIN:
        raise InvalidConfiguration(
            f"{VARIABLE}: a key of {len(text)} characters is guessed in no time: make one with `tripower key new`",
            param=VARIABLE,
        )
    return digest_of(text.encode(errors="surrogateescape"))


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """The keys of a file that only its owner can read. Raises `InvalidConfiguration`, which never shows what is in the file."""
    try:
        # Without O_NONBLOCK a pipe in its place would have to be written to before it could be refused.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
            _check_file(path, os.fstat(opened.fileno()))
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise _refused(path, f"it is longer than {FILE_BYTES_MAX} bytes")
        entries = msgspec.convert(tomllib.loads(data.decode()), KeyFile).key
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror or type(error).__name__}") from error
    except msgspec.ValidationError as error:
        told = str(error)
        plain = ": a key is kept as `sha256`, which `tripower key new` prints" if "sha256" in told or "`key`" in told else ""
        raise _refused(path, f"{error}{plain}") from None
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is no valid TOML{_place(error)}") from None
    if len({entry.sha256 for entry in entries}) < len(entries):
        raise _refused(path, "a key is in it twice")
    return entries


def _place(error: Exception) -> str:
    """Where a file stops being TOML; the rest of the error may quote the file."""
    found = _PLACE.search(str(error))
    if found is None:
        return ""
    place = f"line {found[1]}" if found[1] else "its end"
    return f" at {place}: each line is empty, a comment, [[key]], or NAME = VALUE"


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "it is no regular file")
    if status.st_mode & _FORBIDDEN_BITS:
        raise _refused(path, f"others can read or change it: chmod 600 {path}")


def _refused(path: Path, why: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"the keys of {path} cannot be used: {why}", param="auth.keys_file")


def _with_limits(entry: KeyEntry, settings: AuthSettings) -> ApiKey:
    def limit(own: int | None, general: int) -> int:
        return general if own is None else own

    return ApiKey(
        digest=bytes.fromhex(entry.sha256),
        name=entry.name,
        admin=entry.admin,
        weight=entry.weight,
        concurrency=limit(entry.concurrency, settings.concurrency),
        requests_per_minute=limit(entry.requests_per_minute, settings.requests_per_minute),
        tokens_per_minute=limit(entry.tokens_per_minute, settings.tokens_per_minute),
    )

"""One flat list of settings, read off the structs, and the check of one value against its setting.

msgspec stops at the first violation and we want all of them, so every value is converted on its own, strictly: a string is no number,
a boolean is no integer, and a float must be finite.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tripower.runtime.configuration.durations import parse_duration
from tripower.runtime.configuration.settings import (
    BACKENDS,
    DEVICES,
    KERNELS,
    KV_TYPES,
    LOG_FORMATS,
    METRICS_FAMILIES,
    MODES,
    PROXY_EXTENSIONS,
    SOCKET_MODES,
    Configuration,
    values,
)

Kind = Literal["boolean", "integer", "seconds", "text", "list"]
TEXT_BYTES_MAX = 4096
HOST_BYTES_MAX = 253
PATH_BYTES_MAX = 4096
_KINDS: dict[Any, Kind] = {bool: "boolean", int: "integer", float: "seconds", str: "text", tuple: "list"}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?\Z")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._-]+(:[0-9]{1,5})?\Z|[a-z][a-z0-9+.-]*://\[[0-9a-f:.]+\](:[0-9]{1,5})?\Z")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*\Z")
_MODEL = re.compile(r"[^\x00-\x1f\x7f]+\Z")
_DIGEST = re.compile(r"[0-9A-Fa-f]{64}\Z")
_ADDRESS = re.compile(r"[^/]*:[0-9]+\Z|[0-9]+\Z|[A-Za-z][A-Za-z0-9+.-]*://")


class Setting(msgspec.Struct, frozen=True):
    """What may stand at one path."""

    path: str
    kind: Kind
    annotation: Any
    expected: str
    about: str
    default: Any

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "TRIPOWER_" + self.path.replace(".", "__").upper()


class Refused(ValueError):
    """A value that a setting cannot take; the text says what was expected."""


def is_host(text: str) -> bool:
    """Whether `text` is an IP literal or a host name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text.encode()) <= HOST_BYTES_MAX and _HOST_NAME.match(text) is not None
    return True


def is_path(text: str) -> bool:
    """Whether `text` can name a file; empty names none."""
    return "\0" not in text and len(text.encode(errors="surrogatepass")) <= PATH_BYTES_MAX


def is_socket(text: str) -> bool:
    """Whether `text` can name a Unix socket; empty names none. A port, HOST:PORT and a URL cannot, though a file might be called so."""
    return is_path(text) and _ADDRESS.match(text) is None


def is_origin(text: str) -> bool:
    """Whether `text` is an origin as browsers send it: in lower case, without a path; or `*` for all of them."""
    return text == "*" or _ORIGIN.match(text) is not None


def is_prefix(text: str) -> bool:
    """Whether `text` can stand before a path: plain segments, each with a slash before it; empty is none."""
    return _PREFIX.match(text) is not None and not {".", ".."} & set(text.split("/"))


def is_device(text: str) -> bool:
    """Whether `text` names a device; whether there is one is found out when a model is loaded."""
    kind, _, number = text.partition(":")
    return text in DEVICES or (kind == "cuda" and number.isascii() and number.isdecimal() and len(number) <= 3)


def is_model(text: str) -> bool:
    """Whether `text` can be a model reference; whether it means anything is found out when it is resolved."""
    return bool(_MODEL.match(text)) and text == text.strip() and not text.startswith("=") and not text.endswith("=")


def is_optional_model(text: str) -> bool:
    """Whether `text` is empty, or can be a model reference."""
    return not text or is_model(text)


def is_digest(text: str) -> bool:
    """Whether `text` is a SHA-256 in hexadecimal digits; empty is none."""
    return not text or _DIGEST.match(text) is not None


TEXT_RULES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "server.host": (is_host, "an IP literal or a host name"),
    "server.allowed_hosts": (is_host, "host names or IP literals"),
    "server.metrics_families": (METRICS_FAMILIES.__contains__, f"of {', '.join(METRICS_FAMILIES)}"),
    "server.log_format": (LOG_FORMATS.__contains__, f"one of {', '.join(LOG_FORMATS)}"),
    "server.audit_file": (is_path, "a path"),
    "server.cors_origins": (is_origin, "origins such as https://chat.example.org, or *"),
    "server.root_path": (is_prefix, "a prefix such as /llm, without a slash at its end"),
    "server.unix_socket": (is_path, "a path"),
    "server.unix_socket_mode": (SOCKET_MODES.__contains__, f"one of {', '.join(SOCKET_MODES)}"),
    "server.tls_certificate": (is_path, "a path"),
    "server.tls_key": (is_path, "a path"),
    "server.tls_key_password_file": (is_path, "a path"),
    "auth.keys_file": (is_path, "a path"),
    "models": (is_model, "model names, sources or NAME=SOURCE"),
    "engine.backend": (BACKENDS.__contains__, f"one of {', '.join(BACKENDS)}"),
    "engine.device": (is_device, f"one of {', '.join(DEVICES)}, cuda:N"),
    "engine.kernels": (KERNELS.__contains__, f"one of {', '.join(KERNELS)}"),
    "engine.kv_type": (KV_TYPES.__contains__, f"one of {', '.join(KV_TYPES)}"),
    "speculation.mode": (MODES.__contains__, f"one of {', '.join(MODES)}"),
    "speculation.draft_model": (is_optional_model, "a model name or source"),
    "speculation.draft_sha256": (is_digest, "64 hexadecimal digits"),
    "speculation.draft_target_sha256": (is_digest, "64 hexadecimal digits"),
    "proxy.extensions": (PROXY_EXTENSIONS.__contains__, f"of {', '.join(PROXY_EXTENSIONS)}"),
    "console.socket": (is_socket, "the path of a Unix socket, never an address"),
}


def _setting(path: str, annotation: Any, default: Any) -> Setting:
    base, meta = get_args(annotation)
    kind = _KINDS[get_origin(base) or base]
    return Setting(path, kind, annotation, _expected(path, kind, meta), meta.description or "", default)


def _expected(path: str, kind: Kind, meta: msgspec.Meta) -> str:
    if kind == "integer":
        return f"an integer from {meta.ge} to {meta.le}"
    if kind == "seconds":
        return f"seconds from {meta.ge} to {meta.le}, or a duration such as 30s or 5m"
    if kind == "boolean":
        return "true or false"
    rule = TEXT_RULES[path][1]
    return f"a list of at most {meta.max_length} {rule}" if kind == "list" else rule


def _all_settings() -> dict[str, Setting]:
    defaults = dict(values(Configuration()))
    hints = get_type_hints(Configuration, include_extras=True)
    found = {}
    for path, default in defaults.items():
        section, _, name = path.rpartition(".")
        annotation = get_type_hints(hints[section], include_extras=True)[name] if section else hints[name]
        found[path] = _setting(path, annotation, default)
    return found


SETTINGS: Mapping[str, Setting] = _all_settings()
SECTIONS: frozenset[str] = frozenset(path.partition(".")[0] for path in SETTINGS if "." in path)


def checked(setting: Setting, value: Any) -> Any:
    """`value` in the setting's type. Raises `Refused` for a wrong type, a number out of range or not finite, a bad text."""
    try:
        if setting.kind == "seconds" and isinstance(value, str):
            value = parse_duration(value)
        converted = msgspec.convert(value, setting.annotation, strict=True)
    except (ValueError, OverflowError) as error:  # msgspec.ValidationError is a ValueError
        raise Refused(setting.expected) from error
    if setting.kind == "seconds" and not math.isfinite(converted):
        raise Refused(setting.expected)
    for text in [converted] if setting.kind == "text" else converted if setting.kind == "list" else []:
        _check_text(setting, text)
    return converted


def _check_text(setting: Setting, text: str) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise Refused("valid Unicode text") from error
    if length > TEXT_BYTES_MAX:
        raise Refused(f"at most {TEXT_BYTES_MAX} bytes")
    if not TEXT_RULES[setting.path][0](text):
        raise Refused(setting.expected)

"""The server's certificate and key, read from files and checked before anything else begins."""

from __future__ import annotations

import ssl
from pathlib import Path

from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

PROTOCOLS = ["h2", "http/1.1"]
"""What a client may choose from (ALPN), the best first."""
PASSWORD_BYTES_MAX = 1024


class Certificates:
    """What new connections are encrypted with. Connections that exist keep what they began with."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.context = read_context(settings)

    def reload(self) -> None:
        """Read the files again. Blocks for them. Raises `InvalidConfiguration`, and then the old ones stay in use."""
        self.context = read_context(self._settings)


def certificates(settings: ServerSettings) -> Certificates | None:
    """None when nothing is to be encrypted. Blocks for two small files. Raises `InvalidConfiguration`."""
    if not (settings.tls_certificate or settings.tls_key):
        if settings.tls_key_password_file:
            raise _invalid("server.tls_key_password_file has no use without server.tls_certificate and server.tls_key")
        return None
    if not (settings.tls_certificate and settings.tls_key):
        missing = "server.tls_key" if settings.tls_certificate else "server.tls_certificate"
        raise _invalid(f"{missing} is missing: a certificate and its key are given together")
    return Certificates(settings)


def read_context(settings: ServerSettings) -> ssl.SSLContext:
    """TLS 1.2 and later, with the library's own choice of ciphers. Raises `InvalidConfiguration` naming the file and what is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(PROTOCOLS)
    certificate = _readable("server.tls_certificate", settings.tls_certificate)
    key = _readable("server.tls_key", settings.tls_key)
    asked = False

    def password() -> bytes:
        nonlocal asked
        asked = True
        return _password(settings.tls_key_password_file)

    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if asked:
            raise _invalid(f"server.tls_key {key}: the password in server.tls_key_password_file does not open it") from error
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _invalid(f"server.tls_key {key} is not the key of server.tls_certificate {certificate}") from error
        raise _invalid(
            f"server.tls_certificate {certificate} and server.tls_key {key} are not a certificate and a key in PEM form"
        ) from error
    return context


def _readable(name: str, given: str) -> Path:
    path = Path(given).expanduser()
    _check_regular(name, path)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise _invalid(f"{name} {path} cannot be read: {error.strerror}") from error


def _check_regular(name: str, path: Path) -> None:
    """Refuse what opening could block for. What does not exist is for whoever opens it."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a directory says so itself
        raise _invalid(f"{name} {path} is no regular file")


def _password(given: str) -> bytes:
    if not given:
        raise _invalid("server.tls_key is encrypted: name a file with its password in server.tls_key_password_file")
    path = Path(given).expanduser()
    _check_regular("server.tls_key_password_file", path)
    try:
        with path.open("rb") as file:
            return file.read(PASSWORD_BYTES_MAX).strip(b"\r\n")
    except OSError as error:
        raise _invalid(f"server.tls_key_password_file {path} cannot be read: {error.strerror}") from error


def _invalid(message: str) -> InvalidConfiguration:
    return InvalidConfiguration(message, code="tls_unusable")

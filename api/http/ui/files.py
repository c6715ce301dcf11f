"""The files of the page: a shell, a style sheet, and a script that is the parts in `script/`, one after the other.

They hold no data, so they are served without a key. Browsers ask each time whether theirs are still right, and may load nothing from
anywhere else.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from tripower.api.http.exchange import Header

FOLDER = Path(__file__).parent
PARTS = ("elements", "server", "markdown", "turns", "chat", "plot", "tree", "status", "page")
"""Of the script, in their order."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
GUARDS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""What every answer of the page says."""


@attrs.frozen
class File:
    """One of them, and the name of its route."""

    path: str
    route: str
    content_type: bytes
    content: bytes

    @property
    def etag(self) -> bytes:
        return b'"%s"' % hashlib.sha256(self.content).hexdigest()[:20].encode()

    @property
    def headers(self) -> tuple[Header, ...]:
        return (*GUARDS, (b"etag", self.etag), (b"cache-control", b"no-cache"))


def _script() -> bytes:
    return b"\n".join((FOLDER / "script" / f"{part}.js").read_bytes() for part in PARTS)


SHELL = File("/ui", "ui", b"text/html; charset=utf-8", (FOLDER / "page.html").read_bytes())
FILES = (
    SHELL,
    File("/ui/page.css", "ui_style", b"text/css; charset=utf-8", (FOLDER / "page.css").read_bytes()),
    File("/ui/page.js", "ui_script", b"text/javascript; charset=utf-8", _script()),
)
PATHS = frozenset(file.path for file in FILES)

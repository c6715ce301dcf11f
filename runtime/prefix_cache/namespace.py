"""Whose prefixes these are: the rules of a caller's key, and the name of a namespace.

A state is found again only by requests of its own namespace. A namespace is named by an HMAC under a secret that this process drew and
nobody else knows, over everything that must be equal: the caller's identity, what kind of prompt it is, the model, and the caller's
key if there is one. So two tenants never share a name, whatever keys they choose, and a name says nothing about the key behind it.
The identity is the fingerprint of an API key, not its place in a list, so reordering keys changes no name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata

from tripower.runtime.kernel.errors import InvalidRequest

KEY_BYTES_MAX = 256
DOMAIN = b"tripower/prefix-namespace/v1"
_SECRET = secrets.token_bytes(32)


def check_key(key: str) -> None:
    """Raise `InvalidRequest` (`invalid_prompt_cache_key`) for a key that is no key: 1 to 256 bytes of UTF-8, trimmed, printable."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise _invalid("is no valid Unicode text") from None
    if not 1 <= size <= KEY_BYTES_MAX:
        raise _invalid(f"has {size} bytes; 1 to {KEY_BYTES_MAX} are taken")
    if key != key.strip():
        raise _invalid("begins or ends with whitespace")
    if any(unicodedata.category(character) == "Cc" for character in key):
        raise _invalid("contains a control character")


def namespace_of(*, identity: str, endpoint: str, model: str, key: str | None, secret: bytes = _SECRET) -> str:
    """The name of a namespace: `tpc1:` and 64 hex digits. `endpoint` is `chat` or `completion`; `identity` is empty for anybody."""
    whose = b"authenticated" if identity else b"anonymous"
    fields = [DOMAIN, whose, identity.encode(), endpoint.encode(), model.encode()]
    text = b"".join(len(field).to_bytes(8) + field for field in fields)
    text += b"\0" if key is None else b"\1" + len(key.encode()).to_bytes(8) + key.encode()
    return "tpc1:" + hmac.new(secret, text, hashlib.sha256).hexdigest()


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"prompt_cache_key {what}: send a shorter plain text, or leave it out",
        code="invalid_prompt_cache_key",
        param="prompt_cache_key",
    )

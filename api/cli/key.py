"""`tripower key new`: make an API key, show it once, and the lines for the file that hold its hash."""

from __future__ import annotations

import argparse
import secrets

from tripower.api.cli import exit_codes
from tripower.api.http.auth.keys import NAME, digest_of
from tripower.runtime.kernel.errors import InvalidConfiguration

PREFIX = "tp-"
KEY_BYTES = 32


def main(arguments: argparse.Namespace) -> int:
    """Print a new key. Nothing is stored. Returns the exit code."""
    if NAME.fullmatch(arguments.name) is None:
        raise InvalidConfiguration("a key's name has at most 64 letters, digits, spaces and _ . : @ / -")
    print(new_key_text(PREFIX + secrets.token_urlsafe(KEY_BYTES), name=arguments.name, admin=arguments.admin))
    return exit_codes.OK


def new_key_text(key: str, *, name: str, admin: bool) -> str:
    """The key on a line of its own, then the `[[key]]` for the file of `auth.keys_file`."""
    lines = [
        key,
        "",
        "# the key is shown only this once; these lines belong into the file that auth.keys_file names (chmod 600):",
        "[[key]]",
        *([f'name = "{name}"'] if name else []),
        f'sha256 = "{digest_of(key.encode()).hex()}"',
        *(["admin = true"] if admin else []),
    ]
    return "\n".join(lines)

"""`tripower key new`: make an API key, show it once, and the lines for the file that hold its hash.

The key goes to standard error where standard output is redirected, so that `tripower key new >> keys.toml` appends what belongs there.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from tripower.api.cli import exit_codes
from tripower.api.cli.terminal import is_terminal
from tripower.api.http.auth.keys import NAME, digest_of
from tripower.runtime.kernel.errors import InvalidConfiguration

PREFIX = "tp-"
KEY_BYTES = 32


def main(arguments: argparse.Namespace) -> int:
    """Print a new key. Nothing is stored. Returns the exit code."""
    if NAME.fullmatch(arguments.name) is None:
        raise InvalidConfiguration("a key's name has at most 64 letters, digits, spaces and _ . : @ / -")
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    # what is redirected goes into the file of keys, where a plain key has no place
    print(key, file=sys.stdout if is_terminal(sys.stdout) else sys.stderr, flush=True)
    print(key_file_lines(key, name=arguments.name, admin=arguments.admin))
    return exit_codes.OK


def key_file_lines(key: str, *, name: str, admin: bool) -> str:
    """The `[[key]]` for the file of `auth.keys_file`."""
    lines = [
        "",
        "# the key itself is shown only this once; these lines belong into the file that auth.keys_file names (chmod 600):",
        "[[key]]",
        *([f'name = "{name}"'] if name else []),
        f'sha256 = "{digest_of(key.encode()).hex()}"',
        *(["admin = true"] if admin else []),
    ]
    return "\n".join(lines)

"""Names and addresses of machines, as far as they say which machine is meant."""

from __future__ import annotations

import ipaddress
import re

HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]*))(?::[0-9]{0,5})?")
"""A Host header in lower case: a name or an address, and perhaps a port (RFC 9110, 7.2), without what no name in use has."""


def host_name(host: str) -> str | None:
    """A Host header without its port and brackets, in lower case; None when it is none."""
    match = HOST.fullmatch(host.strip().lower())
    if match is None:
        return None
    return match["address"] or match["name"].rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    host = host.lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

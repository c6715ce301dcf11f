"""Names and addresses of machines, as far as they say which machine is meant."""

from __future__ import annotations

import ipaddress


def host_name(host: str) -> str:
    """A Host header without its port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    host = host.lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Who could reach the server, as it is set up, and whether that is meant. Decided before anything listens."""

from __future__ import annotations

import resource

from tripower.api.http.hosts import is_loopback
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

DESCRIPTORS_WANTED = 16_384


def check_exposure(settings: ServerSettings, *, has_keys: bool) -> None:
    """Raise `InvalidConfiguration` for a server that strangers could use though nobody said so. Plain; nothing blocks.

    Without keys it listens on this machine only, and web pages are let in one by one: the browser of everybody who uses this machine
    would carry out what any page of the web asks for.
    """
    if has_keys:
        return
    if settings.tcp and not is_loopback(settings.host) and not settings.allow_public_without_keys:
        raise InvalidConfiguration(
            f"{settings.host} can be reached from other machines, and there are no API keys: set up keys (`tripower key new`), "
            "use --host 127.0.0.1, or say --set server.allow_public_without_keys=true",
            code="public_without_keys",
        )
    if "*" in settings.cors_origins:
        raise InvalidConfiguration(
            "server.cors_origins has *, and there are no API keys: every web page could use this server; list the origins, or set up keys",
            code="cors_without_keys",
        )


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may, so that a thousand idle connections are no trouble. For our own process only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

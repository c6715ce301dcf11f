"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

import attrs

from tripower.api.console.places import ROOT

NOBODY = -1
"""The user at the other end of a socket that is not connected."""


@attrs.frozen
class Peer:
    """The process at the other end, as the kernel vouches for it."""

    pid: int
    user: int


def peer_of(connected: socket.socket) -> Peer | None:
    """Who that is; None where the kernel cannot say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return Peer(pid, user)


def may_attach(peer: Peer | None) -> bool:
    """Whether it is this process's user, or root. Where the kernel does not say, the socket's mode has to do."""
    return peer is None or peer.user in (os.geteuid(), ROOT)


def may_be_trusted(peer: Peer | None) -> bool:
    """Whether a console may attach to it: the same, and root may attach to anybody's."""
    return os.geteuid() == ROOT or may_attach(peer)

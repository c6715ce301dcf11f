"""Who asks: what admission needs to know of an identity, and nothing else of it."""

from __future__ import annotations

import msgspec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An identity and its share. Everybody without a key is one identity, the empty one."""

    identity: str = ""
    name: str = ""
    """What its holder is called, for people; nothing is decided by it."""
    weight: float = 1.0
    """Share of the service relative to other identities, above 0."""
    concurrency_max: int = 0
    """Requests of this identity that may have a seat or a waiting place of one model at once; 0: no limit of its own."""
    alone: bool = True
    """Whether nobody else can ask. Where others can, the last free seats are kept for those who hold none."""

    @property
    def label(self) -> str:
        """What records call it: the identity, which never changes, and behind it the name where there is one."""
        return f"{self.identity} ({self.name})" if self.name else self.identity


ANYBODY = Caller()

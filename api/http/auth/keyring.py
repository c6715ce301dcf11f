"""The keys in force, and who a request comes from.

Every key that comes is hashed and compared with every stored hash, each time in the same time and without an early end, so that an
answer's delay tells nothing about how near a guess was, nor which key it was.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

import attrs
import trio

from tripower.api.http.auth.keys import KEY_BYTES_MAX, ApiKey, digest_of, load_keys
from tripower.api.http.auth.meters import Meter
from tripower.runtime.admission import Caller
from tripower.runtime.configuration import AuthSettings


@attrs.frozen
class Holder:
    """Whoever has one of the keys."""

    key: ApiKey
    caller: Caller
    meter: Meter


class Keyring:
    """`enabled` is False where nobody asked for keys: everybody is let in then.

    Opening it blocks for one small file and raises `InvalidConfiguration`.
    """

    def __init__(self, settings: AuthSettings, environment: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._environment = dict(environment)
        self._holders: tuple[Holder, ...] = ()
        self.enabled = False
        self.take(self.read())

    def read(self) -> tuple[ApiKey, ...] | None:
        """The keys as they are now on disk and in the environment, for `take`. Changes nothing, so any thread may call it.

        Blocks for the file. Raises `InvalidConfiguration`.
        """
        return load_keys(self._settings, self._environment)

    def take(self, keys: tuple[ApiKey, ...] | None) -> int:
        """Put them in force; returns how many there are.

        Keys that have gone are refused from now on, requests that run go on. What a key has used of its minute stays used, unless its
        limits have changed.
        """
        meters = {holder.key.digest: holder.meter for holder in self._holders}
        self.enabled = keys is not None
        self._holders = tuple(_holder(key, meters.get(key.digest), alone=len(keys or ()) < 2) for key in keys or ())
        return len(self._holders)

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """What is in force, hashes only."""
        return tuple(holder.key for holder in self._holders)

    def find(self, key: bytes) -> Holder | None:
        """Whose key this is."""
        if len(key) > KEY_BYTES_MAX:
            return None
        digest, found = digest_of(key), None
        for holder in self._holders:
            if hmac.compare_digest(holder.key.digest, digest):
                found = holder
        return found


def _holder(key: ApiKey, meter: Meter | None, *, alone: bool) -> Holder:
    limits = (key.requests_per_minute, key.tokens_per_minute)
    if meter is None or meter.limits != limits:
        meter = Meter(*limits, now=_now())
    caller = Caller(identity=key.identity, name=key.name, weight=key.weight, concurrency_max=key.concurrency, alone=alone)
    return Holder(key, caller, meter)


def _now() -> float:
    """A key that was read before the loop began has been full since ever."""
    return trio.current_time() if trio.lowlevel.in_trio_run() else float("-inf")

"""Opens a remote model: reads the address, finds the key, and asks the server whether it has the model.

The look at `/models` is there so that a wrong address, key or name is told when the server starts and not to its first user. A server
without that endpoint is taken at its word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from tripower.backends.proxy.address import Upstream, parse_upstream
from tripower.backends.proxy.engine import ProxyEngine, new_client, read_body, unreachable
from tripower.backends.proxy.errors import UpstreamProtocol, quoted, status_error
from tripower.backends.proxy.question import headers_of
from tripower.runtime.engine import LoadedDelegate, LoadSpecification, Progress
from tripower.runtime.kernel import ModelRefused, run_blocking

KEY_VARIABLE = "TRIPOWER_UPSTREAM_KEY"
LISTING_BYTES_MAX = 8 << 20
LISTING_SECONDS = 20.0
SHOWN_MAX = 8
"""Models that a refusal lists."""


class ProxyBackend:
    """See the module. `environment` holds the keys."""

    name = "proxy"

    def __init__(
        self,
        *,
        allow_plain: bool = False,
        extensions: tuple[str, ...] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._allow_plain = allow_plain
        self._extensions = extensions
        self._environment = environment

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        """See `DelegateBackend`. Raises the errors of `backends.proxy.errors`, and `ModelRefused` for a model that is not there."""
        progress("upstream", 0.0)
        upstream = parse_upstream(specification.source, allow_plain=self._allow_plain)
        variable, key = find_key(specification.name, self._environment)
        client = await run_blocking(new_client)
        try:
            listed = await list_models(client, upstream, key=key, key_variable=variable)
        except BaseException:
            await client.aclose()
            raise
        upstream = msgspec.structs.replace(upstream, model=chosen_model(upstream, listed))
        progress("upstream", 1.0)
        return LoadedDelegate(ProxyEngine(upstream, client, key=key, key_variable=variable, extensions=self._extensions))


def find_key(name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The variable that a model's key is or would be in, and the key: `TRIPOWER_UPSTREAM_KEY_<NAME>`, else `TRIPOWER_UPSTREAM_KEY`."""
    own = f"{KEY_VARIABLE}_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
    for variable in (own, KEY_VARIABLE):
        key = environment.get(variable, "").strip()
        if key:
            if not (key.isascii() and key.isprintable()):
                raise ModelRefused(f"{variable} holds characters that no key has", code="invalid_key")
            return variable, key
    return KEY_VARIABLE, ""


async def list_models(client: httpx.AsyncClient, upstream: Upstream, *, key: str, key_variable: str) -> list[str] | None:
    """The names of the upstream's models; None where it has no such list. Raises what `status_error` gives, `UpstreamUnreachable`."""
    where = f"the upstream {upstream.origin}"
    headers = headers_of(key, float("inf")) | {"accept": "application/json"}
    asking = client.build_request("GET", upstream.url("models"), headers=headers, timeout=LISTING_SECONDS)
    try:
        response = await client.send(asking, stream=True)
    except httpx.HTTPError as error:
        raise unreachable(where, error) from error
    try:
        if response.status_code in (404, 405, 501):
            return None
        body = await read_body(response, LISTING_BYTES_MAX)
    finally:
        await response.aclose()
    if response.status_code != 200:
        raise status_error(response.status_code, response.headers, body, where=where, key_variable=key_variable)
    return names_of(body, where)


def names_of(body: bytes, where: str) -> list[str]:
    """The `id` of each entry of a list of models. Raises `UpstreamProtocol`."""
    try:
        decoded: Any = msgspec.json.decode(body)
        return [str(entry["id"]) for entry in decoded["data"]]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError) as error:
        raise UpstreamProtocol(
            f"{where} answers /models with something else than a list of models: is it OpenAI-compatible?"
        ) from error


def chosen_model(upstream: Upstream, listed: list[str] | None) -> str:
    """The model to ask for. Raises `ModelRefused` when it is not there, or when there are several and none was named."""
    shown = ", ".join(quoted(name) for name in (listed or [])[:SHOWN_MAX]) or "none"
    if upstream.model:
        if listed is not None and upstream.model not in listed:
            raise ModelRefused(
                f"{upstream.origin} has no model {upstream.model!r}; it lists: {shown}", code="upstream_model_not_found"
            )
        return upstream.model
    if listed is None or len(listed) != 1:
        raise ModelRefused(
            f"name the model of {upstream.origin}, as in {upstream.base}#MODEL; it lists: {shown}",
            code="upstream_model_not_named",
        )
    return listed[0]

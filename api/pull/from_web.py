"""Model files behind an address: `https://…`, and `hf:org/repo/file` on the model hub.

A hub tells the digest and the length of a large file with its first response, a redirect; both are checked. The token, from
`TRIPOWER_HUB_TOKEN` or `HF_TOKEN`, goes to the hub's own host only, and is never stored or logged. `HF_ENDPOINT` names another hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from tripower.api.pull.http_download import HttpDownload
from tripower.api.pull.model_format import detect_format
from tripower.api.pull.responses import download_client, is_loopback
from tripower.api.pull.sources import HubSource, WebSource
from tripower.api.pull.workspace import Fetched, Workspace, check_digest
from tripower.runtime.kernel.errors import InvalidRequest
from tripower.runtime.store import HashingFile, StoredFile

HUB = "https://huggingface.co"
_LINKED_DIGEST = re.compile(r'"?(?:sha256:)?([0-9a-f]{64})"?\Z')


async def fetch_from_web(source: WebSource, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    """(format, files) of the file behind an address."""
    file_name = source.url.partition("?")[0].rpartition("/")[2]
    return await _fetch(source.url, source.text, file_name, {}, workspace, trusted_hub=False)


async def fetch_from_hub(source: HubSource, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    """(format, files) of a file of a hub repository, at the head of its main branch."""
    url = f"{hub_address(workspace.environment)}/{source.organisation}/{source.repository}/resolve/main/{quote(source.file)}"
    file_name = source.file.rpartition("/")[2]
    return await _fetch(url, source.text, file_name, hub_credentials(workspace.environment), workspace, trusted_hub=True)


def hub_address(environment: Mapping[str, str]) -> str:
    """The hub's address without a slash at its end. Raises `InvalidRequest` when it is neither https nor on this machine."""
    address = environment.get("HF_ENDPOINT", "").rstrip("/") or HUB
    scheme, _, rest = address.partition("://")
    host = re.split("[:/]", rest, maxsplit=1)[0]
    if scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise InvalidRequest("HF_ENDPOINT must be an https address", code="invalid_hub")
    return address


def hub_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The header that carries the token, or nothing."""
    token = (environment.get("TRIPOWER_HUB_TOKEN") or environment.get("HF_TOKEN") or "").strip()
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(
            "the hub token has characters that no token has: set TRIPOWER_HUB_TOKEN again", code="invalid_hub_token"
        )
    return {"authorization": f"Bearer {token}"}


async def _fetch(
    url: str, source: str, file_name: str, credentials: dict[str, str], workspace: Workspace, *, trusted_hub: bool
) -> tuple[str, tuple[Fetched, ...]]:
    path = workspace.directory / "download"
    with HashingFile(path) as growing:
        download = HttpDownload(
            url=url,
            source=source,
            growing=growing,
            record=workspace.directory / "download.json",
            meter=workspace.meter,
            ensure_room=workspace.store.ensure_room,
            headers=credentials,
        )
        async with download_client() as client:
            first = await download.run(client)
    digest, size = growing.sha256, growing.size
    check_digest(source, digest, workspace.sha256)
    if trusted_hub and (linked := _LINKED_DIGEST.match(first.get("x-linked-etag", ""))):
        check_digest(source, digest, linked[1])
    return detect_format(path, source), (Fetched(StoredFile(file_name, size, digest), path),)

"""A download survives broken connections, changed files and dishonest servers, and keeps only what it verified."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tripower.api.pull import PullProgress, pull, responses
from tripower.api.pull.http_download import ATTEMPTS_MAX
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused, NotFound, Overloaded, TripowerError, Unavailable
from tripower.runtime.store import DigestMismatch, Manifest, Store, StoreFull

BODY = b"GGUF" + bytes(range(256)) * 8192  # 2 MiB and a little
HALF = len(BODY) // 2
SHA256 = hashlib.sha256(BODY).hexdigest()


@attrs.define
class Request:
    path: str
    headers: dict[str, str]
    stream: trio.SocketStream

    async def answer(self, status: str, headers: dict[str, str], body: bytes = b"") -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in {"connection": "close", **headers}.items())
        await self.stream.send_all(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)

    async def file(self, body: bytes = BODY, *, etag: str = '"one"', send: int | None = None, **headers: str) -> None:
        """The file as an honest server gives it; only the first `send` bytes of the answer's body are sent."""
        start = 0
        if self.headers.get("if-range") == etag and (wanted := self.headers.get("range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        status = "206 Partial Content" if start else "200 OK"
        extra = {"content-range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        sent = body[start:] if send is None else body[start : start + send]
        await self.answer(status, {"etag": etag, "content-length": str(len(body) - start), **extra, **headers}, sent)


Responder = Callable[[Request], Awaitable[None]]


@attrs.define
class Server:
    """Answers the n-th request with the n-th responder; the last one answers the rest."""

    responders: Sequence[Responder]
    url: str = ""
    requests: list[Request] = attrs.field(factory=list)

    async def handle(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (received := await stream.receive_some(65536)):
                return
            head += received
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        request = Request(first.split(" ")[1], headers, stream)
        self.requests.append(request)
        await self.responders[min(len(self.requests), len(self.responders)) - 1](request)

    def ranges(self) -> list[str | None]:
        return [request.headers.get("range") for request in self.requests]


@asynccontextmanager
async def serving(*responders: Responder) -> AsyncIterator[Server]:
    server = Server(responders)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await server.handle(stream)
        except trio.BrokenResourceError:
            return  # the client went away

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield server
        nursery.cancel_scope.cancel(reason="the test is over")


async def whole(request: Request) -> None:
    await request.file()


async def half(request: Request) -> None:
    await request.file(send=HALF)


async def nothing(request: Request) -> None:
    """Takes the request and hangs up."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.home.rglob("*") if path.is_file() and path.parent.name != "locks"]


def bytes_kept(store: Store) -> int:
    return sum(path.stat().st_size for path in (store.home / "partial").rglob("download"))


def assert_stored(store: Store, manifest: Manifest, body: bytes = BODY) -> None:
    assert store.path(manifest).read_bytes() == body
    assert manifest.primary.sha256 == hashlib.sha256(body).hexdigest()
    assert not list((store.home / "partial").iterdir())


async def test_a_file_is_fetched_verified_and_stored(store: Store) -> None:
    told: list[PullProgress] = []
    async with serving(whole) as server:
        manifest = await pull(f"{server.url}/m.gguf", store=store, progress=told.append, sha256=SHA256.upper())
        assert (manifest.name, manifest.format, manifest.primary.name) == ("m", "gguf", "m.gguf")
        assert_stored(store, manifest)
        assert await pull(f"{server.url}/m.gguf", store=store, progress=told.append) == manifest
        assert await pull(f"other={server.url}/m.gguf", store=store) == store.find("other")
    assert len(server.requests) == 1
    assert server.requests[0].headers["accept-encoding"] == "identity"
    downloads = [each for each in told if each.stage == "downloading"]
    assert downloads[-1].completed == downloads[-1].total == len(BODY)
    assert [each.completed for each in downloads] == sorted(each.completed for each in downloads)
    assert [each.stage for each in told[-2:]] == ["stored", "already_stored"]


async def test_a_broken_connection_is_picked_up_where_it_broke(store: Store) -> None:
    async with serving(half, whole) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert server.ranges() == [None, f"bytes={HALF}-"]
    assert server.requests[1].headers["if-range"] == '"one"'


async def test_a_server_that_hangs_up_fails_the_pull_and_the_next_goes_on(store: Store) -> None:
    told: list[PullProgress] = []
    async with serving(half, nothing, whole) as server:
        with pytest.raises(Unavailable, match="pull again to go on") as error:
            await pull(f"{server.url}/m.gguf", store=store)
        assert error.value.code == "connection_broken"
        assert bytes_kept(store) == HALF
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store, progress=told.append))
    assert server.ranges() == [None, f"bytes={HALF}-", f"bytes={HALF}-"]
    assert "resuming" in [each.stage for each in told]


async def test_a_server_that_ignores_the_range_is_read_from_the_beginning(store: Store) -> None:
    async def ignores(request: Request) -> None:
        request.headers.pop("range", None)
        await request.file()

    async with serving(half, ignores) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))


async def test_a_file_that_changed_meanwhile_is_fetched_anew(store: Store) -> None:
    newer = b"GGUF newer"

    async def changed(request: Request) -> None:
        await request.file(newer, etag='"two"')

    async with serving(half, changed) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store), newer)


@pytest.mark.parametrize(
    ("etag", "content_range"),
    [
        ('"two"', f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"),
        ('"one"', f"bytes 0-{len(BODY) - 1}/{len(BODY)}"),
        ('"one"', f"bytes {HALF}-{len(BODY)}/{len(BODY) + 1}"),
        ('"one"', f"bytes {HALF}-{len(BODY) - 1}/*"),
        ('"one"', "nonsense"),
    ],
)
async def test_a_range_that_does_not_fit_is_not_appended(store: Store, etag: str, content_range: str) -> None:
    async def misfit(request: Request) -> None:
        await request.answer(
            "206 Partial Content", {"etag": etag, "content-range": content_range, "content-length": "3"}, b"bad"
        )

    async with serving(half, misfit, whole) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert server.ranges() == [None, f"bytes={HALF}-", None]


async def test_a_range_beyond_the_end_starts_over(store: Store) -> None:
    async def beyond(request: Request) -> None:
        await request.answer("416 Range Not Satisfiable", {"content-range": "bytes */7", "content-length": "0"})

    async with serving(half, beyond, whole) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert server.ranges()[-1] is None


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        ({"etag": 'W/"weak"', "last-modified": "Sun, 06 Nov 1994 08:49:37 GMT"}, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ({"last-modified": "Sun, 06 Nov 1994 08:49:37 GMT"}, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ({"etag": 'W/"weak"'}, None),
        ({}, None),
    ],
)
async def test_only_a_strong_validator_or_a_date_allows_going_on(
    store: Store, headers: dict[str, str], validator: str | None
) -> None:
    async def cut(request: Request) -> None:
        await request.answer("200 OK", {"content-length": str(len(BODY)), **headers}, BODY[:HALF])

    async with serving(cut, nothing, whole) as server:
        with pytest.raises(Unavailable):
            await pull(f"{server.url}/m.gguf", store=store)
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert server.requests[1].headers.get("if-range") == validator
    assert (server.ranges()[1] is None) == (validator is None)


async def test_a_body_that_is_always_short_ends_the_pull(store: Store) -> None:
    async def short(request: Request) -> None:
        await request.answer("200 OK", {"content-length": str(len(BODY))}, BODY[:10])

    async with serving(short) as server:
        with pytest.raises(Unavailable) as error:
            await pull(f"{server.url}/m.gguf", store=store)
    assert error.value.code == "connection_broken"
    assert len(server.requests) <= ATTEMPTS_MAX


async def test_a_server_that_gives_a_little_each_time_is_bounded_too(store: Store) -> None:
    async def drip(request: Request) -> None:
        await request.file(send=1000)

    async with serving(drip) as server:
        with pytest.raises(Unavailable, match=f"{ATTEMPTS_MAX} times"):
            await pull(f"{server.url}/m.gguf", store=store)
    assert len(server.requests) == ATTEMPTS_MAX
    assert bytes_kept(store) == ATTEMPTS_MAX * 1000


async def test_a_body_longer_than_declared_is_thrown_away(store: Store) -> None:
    async def long(request: Request) -> None:
        content_range = f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"
        await request.answer("206 Partial Content", {"etag": '"one"', "content-range": content_range}, BODY)

    async with serving(half, long) as server:
        with pytest.raises(Unavailable) as error:
            await pull(f"{server.url}/m.gguf", store=store)
    assert error.value.code == "length_mismatch"
    assert bytes_kept(store) == 0


async def test_a_body_without_a_declared_length_is_taken(store: Store) -> None:
    async def until_close(request: Request) -> None:
        await request.answer("200 OK", {}, BODY)

    async with serving(until_close) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))


async def test_a_wrong_digest_leaves_nothing_behind_and_says_so(store: Store) -> None:
    async with serving(whole) as server:
        with pytest.raises(DigestMismatch, match="Nothing was kept") as error:
            await pull(f"{server.url}/m.gguf", store=store, sha256="0" * 64)
        assert SHA256 in error.value.message
        assert leftovers(store) == []
        await pull(f"{server.url}/m.gguf", store=store)
        with pytest.raises(DigestMismatch, match="already in the store"):
            await pull(f"{server.url}/m.gguf", store=store, sha256="0" * 64)
    with pytest.raises(InvalidRequest, match="64 hexadecimal"):
        await pull("smollm2", store=store, sha256="123")


@pytest.mark.parametrize("body", [b"<html>not found</html>", b"", b"GGU", b"\xff" * 8 + b"{", b"\x02" + b"\0" * 7 + b"["])
async def test_what_is_no_model_is_refused_and_removed(store: Store, body: bytes) -> None:
    async def page(request: Request) -> None:
        await request.file(body)

    async with serving(page) as server:
        with pytest.raises(ModelRefused, match="neither a GGUF nor a SafeTensors") as error:
            await pull(f"{server.url}/m.gguf", store=store)
    assert error.value.code == "unsupported_model_format"
    assert leftovers(store) == []


async def test_a_safetensors_file_is_recognised(store: Store) -> None:
    async def tensors(request: Request) -> None:
        await request.file((2).to_bytes(8, "little") + b"{}")

    async with serving(tensors) as server:
        assert (await pull(f"{server.url}/x.safetensors", store=store)).format == "safetensors"


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        ("401 Unauthorized", InvalidRequest, "TRIPOWER_HUB_TOKEN"),
        ("403 Forbidden", InvalidRequest, "licence"),
        ("404 Not Found", NotFound, "spelling"),
        ("410 Gone", NotFound, "spelling"),
        ("429 Too Many Requests", Overloaded, "in 7 s"),
        ("500 Internal Server Error", Unavailable, "500"),
        ("503 Service Unavailable", Overloaded, "busy"),
        ("204 No Content", Unavailable, "204"),
    ],
)
async def test_each_status_has_its_error_and_its_cure(store: Store, status: str, kind: type[TripowerError], says: str) -> None:
    async def refuses(request: Request) -> None:
        await request.answer(status, {"content-length": "0", "retry-after": "7"})

    async with serving(refuses) as server:
        with pytest.raises(kind, match=says):
            await pull(f"{server.url}/m.gguf", store=store)
    assert store.list() == ()


async def test_compressed_answers_are_refused(store: Store) -> None:
    async def compressed(request: Request) -> None:
        await request.answer("200 OK", {"content-encoding": "gzip", "content-length": "3"}, b"abc")

    async with serving(compressed) as server:
        with pytest.raises(Unavailable, match="compressed"):
            await pull(f"{server.url}/m.gguf", store=store)


async def test_redirects_are_followed_and_loops_end(store: Store) -> None:
    async def onward(request: Request) -> None:
        await request.answer("302 Found", {"location": "/elsewhere/m.gguf", "content-length": "0"})

    async with serving(onward, whole) as server:
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert [request.path for request in server.requests] == ["/m.gguf", "/elsewhere/m.gguf"]
    async with serving(onward) as server:
        with pytest.raises(Unavailable) as error:
            await pull(f"loop={server.url}/m.gguf", store=store)
    assert error.value.code == "redirect_loop"
    assert len(server.requests) == responses.REDIRECTS_MAX + 1


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/m.gguf", "http://[bad", "nonsense://x"])
async def test_a_redirect_to_nowhere_is_a_typed_error(store: Store, location: str) -> None:
    async def astray(request: Request) -> None:
        await request.answer("302 Found", {"location": location, "content-length": "0"})

    async with serving(astray) as server:
        with pytest.raises((Unavailable, InvalidRequest)):
            await pull(f"{server.url}/m.gguf", store=store)


async def test_nobody_listening_is_unavailable(store: Store) -> None:
    async with serving(whole) as server:
        url = server.url
    with pytest.raises(Unavailable, match="connection to"):
        await pull(f"{url}/m.gguf", store=store)


async def test_a_silent_server_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "SILENCE_SECONDS", 0.05)

    async def silent(request: Request) -> None:
        await trio.sleep_forever()

    async with serving(silent) as server:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await pull(f"{server.url}/m.gguf", store=store)


async def test_a_length_that_cannot_fit_is_refused_before_a_byte_is_kept(store: Store) -> None:
    async def huge(request: Request) -> None:
        await request.answer("200 OK", {"content-length": str(1 << 60)}, b"GGUF")

    async with serving(huge) as server:
        with pytest.raises(StoreFull, match="MB are needed"):
            await pull(f"{server.url}/m.gguf", store=store)
    assert leftovers(store) == []


async def test_a_hub_reference_is_fetched_from_its_repository_and_its_digest_checked(store: Store) -> None:
    async def linked(request: Request) -> None:
        await request.answer("302 Found", {"location": "/cdn", "x-linked-etag": f'"{SHA256}"', "content-length": "0"})

    async def wrongly_linked(request: Request) -> None:
        await request.answer("302 Found", {"location": "/cdn", "x-linked-etag": f'"{"0" * 64}"', "content-length": "0"})

    async with serving(linked, whole, wrongly_linked, whole) as server:
        hub = {"HF_ENDPOINT": server.url + "/"}
        manifest = await pull("hf:org/repo/dir/m é.gguf", store=store, environment=hub)
        assert manifest.source == "hf:org/repo/dir/m é.gguf"
        assert server.requests[0].path == "/org/repo/resolve/main/dir/m%20%C3%A9.gguf"
        with pytest.raises(DigestMismatch):
            await pull("hf:org/repo/other.gguf", store=store, environment=hub)
    assert [manifest.name for manifest in store.list()] == ["m-é"]


async def test_the_token_reaches_the_hub_only_and_is_never_written(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def elsewhere(request: Request) -> None:
        port = server.url.rpartition(":")[2]
        location = f"http://localhost:{port}/cdn?signature=also-secret"
        await request.answer("302 Found", {"location": location, "content-length": "0"})

    async def denied(request: Request) -> None:
        await request.answer("403 Forbidden", {"content-length": "0"})

    caplog.set_level(logging.INFO)
    async with serving(elsewhere, whole, elsewhere, denied) as server:
        environment = {"HF_ENDPOINT": server.url, "TRIPOWER_HUB_TOKEN": "hf_secret"}
        await pull("hf:org/repo/m.gguf", store=store, environment=environment)
        with pytest.raises(InvalidRequest) as error:
            await pull("hf:org/repo/n.gguf", store=store, environment=environment)
    assert server.requests[0].headers["authorization"] == "Bearer hf_secret"
    assert "authorization" not in server.requests[1].headers
    written = caplog.text + error.value.message + "".join(path.read_bytes().decode("latin-1") for path in leftovers(store))
    assert "secret" not in written


async def test_a_name_in_use_for_another_source_is_refused_before_anything_is_fetched(store: Store) -> None:
    async with serving(whole) as server:
        await pull(f"{server.url}/m.gguf", store=store)
        with pytest.raises(InvalidRequest, match="another name"):
            await pull(f"{server.url}/other/m.gguf", store=store)
        await pull(f"second={server.url}/other/m.gguf", store=store)
    assert len(server.requests) == 2
    assert len(list((store.home / "blobs").iterdir())) == 1

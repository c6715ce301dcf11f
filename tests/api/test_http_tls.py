"""Encrypted connections: from files that are checked at the start, with either version of HTTP, and with clients that do it wrong."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from trio.testing import MockClock

from tests.api.certificates import Files, certificate_files
from tests.api.fake_runtime import BIG, HELLO, Script, finished, never_ending, tokens
from tests.api.http2_client import Http2Client
from tests.api.serving import ASK, CHAT, Client, Server, serving, until
from tripower.api.http import bind
from tripower.api.http.listening.handshake import HANDSHAKE_SECONDS
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

STREAM = ASK | {"stream": True}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificate_files(tmp_path)


@asynccontextmanager
async def secure(
    server: Server, files: Files, *protocols: str, worst: ssl.TLSVersion | None = None
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """A client's end of an encrypted connection."""
    context = ssl.create_default_context()
    files.authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    if worst is not None:
        context.maximum_version = worst
    plain = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


class SecureClient(Client):
    """`Client` over an encrypted stream."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        super().__init__(stream)  # type: ignore[arg-type]  # it only sends and receives


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("unknown",)], ids=str)
@pytest.mark.parametrize("worst", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_are_answered(protocols: tuple[str, ...], worst: ssl.TLSVersion, files: Files) -> None:
    async with serving(HELLO, **files.settings) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        async with secure(server, files, *protocols, worst=worst) as stream:
            client = SecureClient(stream)
            for body in (ASK, STREAM, ASK):
                assert (await client.ask(CHAT, body)).status == 200
            assert stream.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[worst]
        await server.wait_closed()


async def test_a_client_may_choose_http_2(files: Files) -> None:
    async with serving(HELLO, **files.settings) as server:
        async with secure(server, files, "h2", "http/1.1") as stream:
            assert stream.selected_alpn_protocol() == "h2"
            client = Http2Client(stream)
            await client.send()
            assert (await client.ask(CHAT, STREAM)).text == "Hello there"
            assert (await client.ask("/nowhere")).status == 404
        await server.wait_closed()


async def test_a_client_that_reads_late_gets_everything(files: Files) -> None:
    script = Script([*[tokens(BIG) for _ in range(100)], finished()])
    async with serving(script, **files.settings) as server, secure(server, files) as stream:
        client = SecureClient(stream)
        await client.send_request(CHAT, STREAM)
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.read_answer()).text == BIG * 100


async def test_a_long_body_arrives(files: Files) -> None:
    async with serving(HELLO, **files.settings) as server, secure(server, files) as stream:
        assert (await SecureClient(stream).ask(CHAT, ASK | {"user": "x" * 500_000})).status == 200


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_leaves_frees_its_seat(politely: bool, files: Files) -> None:
    async with serving(Script([tokens("a"), math.inf]), **files.settings) as server:
        async with secure(server, files) as stream:
            client = SecureClient(stream)
            await client.send_request(CHAT, STREAM)
            await client.read_until(b'"content":"a"')
            if politely:
                await stream.aclose()
        await server.wait_closed()
        assert server.runtime.ended == [trio.Cancelled]


async def test_a_client_that_does_not_read_is_dropped(autojump_clock: MockClock, files: Files) -> None:
    async with serving(never_ending(), send_timeout_s=7, **files.settings) as server, secure(server, files) as stream:
        await SecureClient(stream).send_request(CHAT, STREAM)
        await until(lambda: bool(server.runtime.running))
        began = trio.current_time()
        await server.runtime.wait_until(lambda: not server.runtime.running)
        assert 7 <= trio.current_time() - began < 9


async def test_an_answer_ends_with_an_announced_end(files: Files) -> None:
    async with serving(HELLO, **files.settings) as server, secure(server, files) as stream:
        strict = trio.SSLStream.receive_some
        client = SecureClient(stream)
        assert (await client.ask("/health", headers={"connection": "close"})).status == 200
        stream._https_compatible = False  # an end that is not announced would be an error now
        assert await strict(stream) == b""


# Clients that do it wrong.


async def test_a_plain_request_is_told_what_the_port_speaks(files: Files) -> None:
    async with serving(HELLO, **files.settings) as server:
        async with server.client() as client:
            answer = await client.ask("/health")
            assert (answer.status, answer.error["code"]) == (400, "https_required")
            assert await client.read_to_end() == b""
        await server.wait_closed()


@pytest.mark.parametrize(
    "data", [b"\0" * 100, b"\x16\x03\x01\x02\x00" + b"x" * 512, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=len
)
async def test_rubbish_ends_its_connection_and_no_other(data: bytes, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(HELLO, **files.settings) as server:
        async with server.client() as client:
            await client.send(data)
            await client.read_to_end()
        await server.wait_closed()
        async with secure(server, files) as stream:
            assert (await SecureClient(stream).ask("/health")).status == 200
    assert "Traceback" not in caplog.text


async def test_a_handshake_that_does_not_go_on_is_given_up_and_holds_up_nobody(autojump_clock: MockClock, files: Files) -> None:
    async with serving(HELLO, **files.settings) as server, server.client() as silent:
        async with secure(server, files) as stream:
            assert (await SecureClient(stream).ask("/health")).status == 200
        assert await silent.read_to_end() == b""
        assert trio.current_time() == HANDSHAKE_SECONDS


async def test_bytes_that_nobody_signed_end_the_connection(files: Files) -> None:
    async with serving(Script([tokens("a"), math.inf]), **files.settings) as server, secure(server, files) as stream:
        client = SecureClient(stream)
        await client.send_request(CHAT, STREAM)
        await client.read_until(b'"content":"a"')
        await stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        await server.wait_closed()
        assert server.runtime.ended == [trio.Cancelled]


# Files.


def refused(**settings: Any) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        bind(ServerSettings(port=0, **settings)).close()
    assert caught.value.code == "tls_unusable"
    return caught.value.message


def test_files_that_cannot_be_used_are_refused_with_what_is_wrong(files: Files, tmp_path: Path) -> None:
    other = certificate_files(tmp_path, "other")
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("nothing")
    assert "server.tls_key is missing" in refused(tls_certificate=files.certificate)
    assert "server.tls_certificate is missing" in refused(tls_key=files.key)
    assert "cannot be read: No such file" in refused(tls_certificate="/nowhere.pem", tls_key=files.key)
    assert "cannot be read: Is a directory" in refused(tls_certificate=files.certificate, tls_key=str(tmp_path))
    assert "is not the key of" in refused(tls_certificate=files.certificate, tls_key=other.key)
    assert "in PEM form" in refused(tls_certificate=str(rubbish), tls_key=files.key)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is no regular file" in refused(tls_certificate=files.certificate, tls_key=str(pipe))
    assert "has no use without" in refused(tls_key_password_file=str(rubbish))


def test_an_encrypted_key_needs_its_password(files: Files, tmp_path: Path) -> None:
    key = load_pem_private_key(Path(files.key).read_bytes(), None)
    locked, password = tmp_path / "locked.key", tmp_path / "password"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")))
    settings: Any = {"tls_certificate": files.certificate, "tls_key": str(locked)}
    assert "name a file with its password" in refused(**settings)
    password.write_text("wrong\n")
    assert "does not open it" in refused(**settings, tls_key_password_file=str(password))
    password.write_text("open sesame\n")
    bind(ServerSettings(port=0, **settings, tls_key_password_file=str(password))).close()


def test_certificates_are_read_again_and_connections_stay(files: Files, tmp_path: Path) -> None:
    with bind(ServerSettings(port=0, **files.settings)) as bound:
        assert bound.certificates is not None
        before = bound.certificates.context
        bound.certificates.reload()
        assert bound.certificates.context is not before
        before = bound.certificates.context
        Path(files.key).write_text("nothing")
        with pytest.raises(InvalidConfiguration):
            bound.certificates.reload()
        assert bound.certificates.context is before

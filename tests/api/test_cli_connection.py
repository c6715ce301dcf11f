"""The way to the server behind `--url`, and what is said when there is none."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from tests.api.certificates import Files, certificate_files
from tests.api.certificates import authority as certificate_authority
from tests.api.fake_runtime import Script, finished, tokens
from tests.api.serving import serving
from tripower.api.cli import exit_codes
from tripower.api.cli.answers import Question
from tripower.api.cli.connection import Address, address_of, open_client
from tripower.api.cli.doctor_listener import listener
from tripower.api.cli.problems import CannotConnect, ServerRefused, StreamCut, describe
from tripower.api.cli.ps import ask as ps
from tripower.api.cli.remote import RemoteService
from tripower.runtime.configuration import Configuration
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest

QUESTION = Question(messages=({"role": "user", "content": "hi"},))
HELLO = Script((tokens("Hello"), finished(generated=1)))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return certificate_files(tmp_path)


@pytest.fixture
def authority(files: Files, tmp_path: Path) -> str:
    path = tmp_path / "authority.pem"
    files.authority.cert_pem.write_to_path(str(path))
    return str(path)


async def answer_of(url: str, *, cacert: str | None = None) -> str:
    pieces: list[str] = []
    async with open_client(url, cacert=cacert) as client:
        await RemoteService(client, "fake").answer(QUESTION, pieces.append)
    return "".join(pieces)


async def test_a_certificate_of_ones_own_is_trusted_by_option_or_variable(
    files: Files, authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(HELLO, HELLO, **files.settings) as server:
        assert await answer_of(server.url, cacert=authority) == "Hello"
        monkeypatch.setenv("SSL_CERT_FILE", files.certificate)
        assert await answer_of(server.url) == "Hello"
        assert (await ps(server.url)).status == "ok"


async def test_a_certificate_that_is_not_accepted_is_told_apart_from_nobody_there(files: Files, authority: str) -> None:
    async with serving(HELLO, **files.settings) as server:
        with pytest.raises(
            CannotConnect, match=r"certificate of https.* is not accepted.*--cacert FILE or SSL_CERT_FILE"
        ) as caught:
            await answer_of(server.url)
        assert describe([caught.value])[1] == exit_codes.NO_CONNECTION


async def test_a_certificate_of_another_host_is_told_so(authority: str, tmp_path: Path) -> None:
    issued = certificate_authority().issue_cert("example.org")
    certificate, key = tmp_path / "other.pem", tmp_path / "other.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    async with serving(HELLO, tls_certificate=str(certificate), tls_key=str(key)) as server:
        with pytest.raises(CannotConnect, match="is another host's"):
            await answer_of(server.url, cacert=authority)


async def test_two_sides_of_which_one_speaks_tls_say_so(files: Files) -> None:
    async with serving(HELLO) as server:
        with pytest.raises(CannotConnect, match="does not speak TLS"):
            await answer_of(server.url.replace("http:", "https:"))
    async with serving(HELLO, **files.settings) as server:
        with pytest.raises(ServerRefused, match="this port speaks TLS: use https://"):
            await answer_of(server.url.replace("https:", "http:"))


async def test_what_answers_in_no_known_way_may_speak_tls() -> None:
    async def alert(stream: trio.SocketStream) -> None:
        received = b""
        while b"messages" not in received:
            received += await stream.receive_some(65_536)
        await stream.send_all(b"\x15\x03\x03\x00\x02\x02\x46")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listening,) = await nursery.start(partial(trio.serve_tcp, alert, 0, host="127.0.0.1"))
        with pytest.raises(StreamCut, match="if it speaks TLS, write https://"):
            await answer_of(f"http://127.0.0.1:{listening.socket.getsockname()[1]}")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("nothing", "holds no certificate in PEM form")])
async def test_a_file_of_certificates_that_cannot_be_used_is_named(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "some.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidConfiguration, match=f"--cacert .*some.pem cannot be used: .*{says}"):
        await answer_of("https://127.0.0.1:9", cacert=str(path))


async def test_a_unix_socket_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sock"
    monkeypatch.chdir(tmp_path)
    async with serving(HELLO, HELLO, unix_socket=str(path)):
        assert await answer_of(f"unix:{path}") == await answer_of("unix:s.sock") == "Hello"
        assert (await ps(f"unix:{path}")).url == f"unix:{path}"
    with pytest.raises(CannotConnect, match=f"no server answers at unix:{path}"):
        await answer_of(f"unix:{path}")


async def test_nobody_there_says_how_to_start_a_server() -> None:
    with pytest.raises(CannotConnect, match="no server answers at http://127.0.0.1:9: start one with `tripower serve MODEL`"):
        await answer_of("http://127.0.0.1:9")  # the discard port: nobody listens


async def test_a_key_comes_from_the_environment_and_loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_API_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    async with open_client("127.0.0.1:9") as client:
        assert client.headers["authorization"] == "Bearer secret"
        with pytest.raises(CannotConnect):
            await RemoteService(client, "m").answer(QUESTION, lambda text: None)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8420", Address("http://127.0.0.1:8420/")),
        ("127.0.0.1:8420", Address("http://127.0.0.1:8420/")),
        ("localhost:8420/v1", Address("http://localhost:8420/")),
        ("https://host/prefix/", Address("https://host/prefix/")),
        ("http://host:1/v1/", Address("http://host:1/")),
        ("http://host/a/v1?key=1#x", Address("http://host/a/")),
        ("unix:tripower.sock", Address("http://localhost/", "tripower.sock")),
        ("unix:/run/t.sock", Address("http://localhost/", "/run/t.sock")),
        ("unix:///run/t.sock", Address("http://localhost/", "/run/t.sock")),
    ],
)
def test_an_address_may_have_a_path_and_what_people_copy_along(url: str, address: Address) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "//",
        "unix:",
        "unix://",
        "file:/a/b",
        "mailto:x",
        "http://host:port",
        "http://h:99999",
        "http://a b",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no address of a server.*or unix:PATH"):
        address_of(url)


async def test_doctor_finds_a_server_of_ours_by_tls_and_by_its_socket(files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    async with serving(unix_socket=path, **files.settings) as server:
        settings = Configuration(server=msgspec.structs.replace(server.configuration.server, port=server.port))
        found = await trio.to_thread.run_sync(lambda: list(listener(settings)))
    assert [(each.name, each.value, each.state) for each in found] == [
        (f"127.0.0.1 port {server.port}", "in use", "note"),
        (f"unix:{path}", "in use", "note"),
    ]
    assert "over TLS" in found[0].reason
    assert [each.value for each in listener(settings)] == ["free", "free"]

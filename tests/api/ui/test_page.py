"""The web page's files and its state: who gets them, what they may do in a browser, and how heavy they are."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

import pytest

from tests.api.serving import CHAT, serving, serving_toy
from tripower.api.http.ui.files import FILES, FOLDER, PARTS, POLICY, SHELL, File
from tripower.runtime.configuration import AuthSettings

WEIGHT_MAX = 100 * 1024
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY, ADMIN = "tp-of-somebody", "tp-of-the-administrator"
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)


def key_file(folder: Path, keys: dict[str, str]) -> AuthSettings:
    """Keys with what else is said of them."""
    path = folder / "keys.toml"
    path.write_text(
        "\n".join(f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}' for key, more in keys.items())
    )
    path.chmod(0o600)
    return AuthSettings(keys_file=str(path))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@each_file
async def test_each_answer_says_what_the_page_may_do(file: File) -> None:
    async with serving() as server:
        answer = await server.ask(file.path, headers=BROWSER)
    assert answer.status == 200 and answer.body == file.content
    assert answer.headers["content-type"].encode() == file.content_type
    assert answer.headers["content-security-policy"] == POLICY
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert answer.headers["cache-control"] == "no-cache"


def test_the_policy_lets_nothing_in_but_what_this_server_sends() -> None:
    directives = dict(each.strip().split(" ", 1) for each in POLICY.split(";"))
    assert directives == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


async def test_the_whole_page_weighs_at_most_100_kilobytes() -> None:
    async with serving() as server:
        weight = sum([len((await server.ask(file.path)).body) for file in FILES])
    assert 0 < weight <= WEIGHT_MAX


def test_the_shell_names_its_two_files_and_nothing_else() -> None:
    shell = SHELL.content.decode()
    named = re.findall(r'(?:src|href|action|formaction|srcset|poster|data)="([^"]*)"', shell)
    assert {name for name in named if not name.startswith(("data:image/svg+xml,", "#"))} == {"ui/page.css", "ui/page.js"}
    assert not re.search(r'<style|\sstyle=|\son[a-z]+=|<script(?! type="module" src=)', shell)  # the policy would stop them


def test_no_part_of_the_script_makes_markup_or_code_of_a_text() -> None:
    assert {path.stem for path in (FOLDER / "script").iterdir()} == set(PARTS)
    script = (FOLDER / "script").glob("*.js")
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|\beval\b|\bFunction\("
    assert not [(path.name, found) for path in script for found in re.findall(ways, path.read_text(encoding="utf-8"))]


def test_the_style_sheet_fetches_nothing() -> None:
    assert not re.search(rb"url\(|@import|@font-face", (FOLDER / "page.css").read_bytes())


@each_file
async def test_what_a_browser_has_is_not_sent_again(file: File) -> None:
    async with serving() as server, server.client() as client:
        etag = (await client.ask(file.path)).headers["etag"]
        for known in (etag, f'"other", W/{etag}'):
            await client.send_request(file.path, headers={"if-none-match": known})
            unchanged = await client.read_answer(method="HEAD")  # no body follows
            assert (unchanged.status, unchanged.headers["etag"]) == (304, etag)
            assert unchanged.headers["content-security-policy"] == POLICY
        assert (await client.ask(file.path, headers={"if-none-match": '"older"'})).status == 200


@pytest.mark.parametrize("path", [*(file.path for file in FILES), "/ui/state", "/"])
async def test_one_setting_turns_it_off(path: str) -> None:
    async with serving(ui=False) as server:
        answer = await server.ask(path, headers=BROWSER)
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("path", [*(file.path for file in FILES), "/ui/state", "/"])
async def test_where_it_is_off_nothing_of_it_is_open(path: str, tmp_path: Path) -> None:
    async with serving(ui=False, auth=key_file(tmp_path, {KEY: ""})) as server:
        assert (await server.ask(path, headers=BROWSER)).status == 401


async def test_browsers_are_led_to_it_and_programs_hear_what_they_always_heard() -> None:
    async with serving() as server:
        browser = await server.ask("/", headers=BROWSER)
        assert (browser.status, browser.headers["location"]) == (307, "ui")
        beside = await server.ask("/ui/", headers=BROWSER)
        assert (beside.status, beside.headers["location"]) == (307, "../ui")
        for program in (
            await server.ask("/"),
            await server.ask("/", headers={"accept": "*/*"}),
            await server.ask("/", {}, headers=BROWSER),
        ):
            assert (program.status, program.error["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("path", ["/llm/ui", "/ui"])
async def test_it_finds_its_files_behind_a_prefix(path: str) -> None:
    """Whatever is named is beside the page, so it does not depend on what stands before."""
    async with serving(root_path="/llm") as server:
        assert (await server.ask(path)).body == SHELL.content
        assert (await server.ask(f"{path}/page.js")).status == 200


@pytest.mark.parametrize(
    ("keys", "key", "status"),
    [
        ({KEY: "", ADMIN: "admin = true"}, "", 401),
        ({KEY: "", ADMIN: "admin = true"}, "tp-of-nobody", 401),
        ({KEY: "", ADMIN: "admin = true"}, KEY, 403),
        ({KEY: "", ADMIN: "admin = true"}, ADMIN, 200),
        ({KEY: ""}, KEY, 200),
        ({KEY: ""}, "", 401),
    ],
)
async def test_with_keys_the_files_are_open_and_the_state_is_not(
    tmp_path: Path, keys: dict[str, str], key: str, status: int
) -> None:
    async with serving(auth=key_file(tmp_path, keys)) as server:
        for file in FILES:
            assert (await server.ask(file.path)).body == file.content
            assert (await server.ask(file.path, {}, method="POST")).status == 401
        state = await server.ask("/ui/state", headers=bearer(key) if key else None)
        assert state.status == status
        if status != 200:
            assert "actors" not in state.json


async def test_the_state_has_every_actor_after_its_parent_and_is_never_kept() -> None:
    async with serving_toy() as server:
        answer = await server.ask("/ui/state")
    assert answer.headers["cache-control"] == "no-store" and answer.headers["content-type"] == "application/json"
    actors = answer.json["actors"]
    names = [actor["name"] for actor in actors]
    assert {"system", "device:cpu0", "registry", "queue:toy", "api"} <= set(names)
    for place, actor in enumerate(actors):
        assert actor["parent"] == "" or actor["parent"] in names[:place]
    overview = answer.json["overview"]
    assert overview["status"] == "ok" and [model["name"] for model in overview["models"]] == ["toy"]


async def test_who_looks_every_second_does_not_fill_the_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "tripower.http")
    async with serving(auth=key_file(tmp_path, {KEY: ""})) as server:
        for headers in (bearer(KEY), None):
            await server.ask("/ui/state", headers=headers)
    lines = [record.getMessage() for record in caplog.records if record.name == "tripower.http"]
    assert len(lines) == 1 and lines[0].startswith("GET /ui/state 401 ")


async def test_the_page_of_this_server_may_ask_it_and_another_one_may_not() -> None:
    asking = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    async with serving() as server:
        for origin, status in ((server.url, 200), ("https://evil.example", 403)):
            headers = {"host": server.url.partition("//")[2], "origin": origin}
            assert (await server.ask(CHAT, asking, headers=headers)).status == status

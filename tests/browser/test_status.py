"""The status view at `/ui#status`: it moves, and it rests while nobody looks; what needs a key asks for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import child, scripted
from tests.browser.test_chat import IS_OVER, LONG, answer_to, ask, choose, open_chat

pytestmark = pytest.mark.long
KEY, ADMIN = "tp-of-somebody", "tp-of-the-administrator"
LOOKS = "performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/ui/state')).length"


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The toy behind two keys, one of them an administrator's."""
    home = tmp_path_factory.mktemp("guarded")
    entries = {KEY: "", ADMIN: "admin = true"}
    file = home / "keys.toml"
    file.write_text(
        "\n".join(f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}' for key, more in entries.items())
    )
    file.chmod(0o600)
    with child(home, "toy", "--set", f"auth.keys_file={file}") as url:
        yield url


def test_the_tree_and_the_plots_move(page: Page, slow_url: str) -> None:
    open_chat(page, slow_url)
    choose(page, temperature="0")
    ask(page, LONG)
    page.wait("document.querySelector('.turn.assistant > .text').innerText.length > 3")
    page.click("nav a:last-child")
    page.wait("document.querySelector('#tree .request .badge.place-answer')")
    names = page.evaluate("[...document.querySelectorAll('#tree .actor > .row > strong')].map((each) => each.textContent)")
    assert {"system", "device:cpu0", "registry", "queue:slow", "api"} <= set(names)
    assert page.count("#tree .seats i") == 2 and page.count("#tree .seats i.taken") == 1
    inside = "(() => { for (const row of document.querySelectorAll('#tree .request')) return row.parentElement.parentElement.querySelector('strong').textContent; })()"
    assert page.evaluate(inside) == "queue:slow"
    before = page.text("#tree .request .what")
    page.wait(f"document.querySelector('#tree .request .what').innerText !== {before!r}")
    page.wait("(document.querySelector('#speed-plot .line').getAttribute('d') ?? '').split('L').length > 2")
    page.wait("parseFloat(document.querySelector('#speed-plot .value').innerText) > 10")
    page.click("nav a:first-child")
    page.press("Escape")
    page.wait(IS_OVER)
    page.click("nav a:last-child")
    page.wait("!document.querySelector('#tree .request') && !document.querySelector('#tree .seats i.taken')")


LOOKED_TWICE = """(() => {
    const answer = window.fetch;
    window.fetch = async (...asked) => {
        const response = await answer(...asked);
        if (!String(asked[0]).endsWith("/ui/state")) return response;
        const state = await response.json();
        const point = (at) => ({ at, tokens_per_second: 5, running: 1, waiting: 0 });
        state.overview.history = [-60, -59, -3, -2, -1, 0].map(point);
        return new Response(JSON.stringify(state), { status: response.status, headers: response.headers });
    };
})()"""


def test_where_nobody_looked_nothing_is_drawn(page: Page) -> None:
    with scripted() as server:
        page.open(f"{server.url}/ui#status")
        page.evaluate(LOOKED_TWICE)
        page.wait(
            "(document.querySelector('#speed-plot path.line:not(.area)').getAttribute('d') ?? '').split('L').length === 5"
        )
        line, area = (
            page.evaluate(f"document.querySelector('#speed-plot .{kind}').getAttribute('d')")
            for kind in ("line:not(.area)", "area")
        )
        assert [part.count("L") for part in line.split("M")] == [0, 1, 3], line
        assert [part.count("Z") for part in area.split("M")] == [0, 1, 1], area


def test_a_server_that_has_gone_is_told(page: Page) -> None:
    with scripted() as server:
        page.open(f"{server.url}/ui#status")
        page.wait("document.querySelector('#tree').innerText.includes('api')")
    page.wait("document.querySelector('#status-problem').innerText.includes('cannot be reached')")
    page.evaluate("1")
    assert page.problems and all("ERR_CONNECTION" in problem for problem in page.problems)
    page.problems.clear()


def test_nothing_is_asked_while_nobody_looks(page: Page, slow_url: str) -> None:
    page.open(f"{slow_url}/ui#status")
    page.wait(f"{LOOKS} >= 2")
    page.click("nav a:first-child")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))")  # one may have been on its way
    before = page.evaluate(LOOKS)
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 2500))")
    assert page.evaluate(LOOKS) == before


def test_a_key_is_asked_for_and_kept_for_this_tab_alone(page: Page, guarded_url: str) -> None:
    page.open(f"{guarded_url}/ui")
    page.wait("document.querySelector('#key-dialog').open")
    assert page.text("#key-message") == ""
    page.type("a-wrong-key")
    page.press("Enter")
    page.wait("document.querySelector('#key-message').innerText.includes('not known here')")
    page.type(KEY)
    page.press("Enter")
    page.wait("!document.querySelector('#key-dialog').open && document.querySelector('#model').options.length > 0")
    assert answer_to(page, "hello")
    assert page.evaluate("[Object.values(sessionStorage), JSON.stringify(localStorage).includes('tp-of-')]") == [[KEY], False]
    page.reload()
    page.wait("document.querySelector('#model').options.length > 0")
    page.click("nav a:last-child")
    page.wait("document.querySelector('#status-problem').innerText.includes('administrators')")
    assert page.text("#tree") == ""
    page.click("#key-button")
    page.wait("document.querySelector('#key-dialog').open")
    page.type(ADMIN)
    page.press("Enter")
    page.wait("document.querySelector('#tree').innerText.includes('queue:toy')")
    assert page.text("#status-problem") == ""
    refused = [problem for problem in page.problems if "401" in problem or "403" in problem]
    assert page.problems == refused and len(refused) == 3
    page.problems.clear()

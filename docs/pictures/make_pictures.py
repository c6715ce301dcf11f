"""Take the pictures of the README: `python docs/pictures/make_pictures.py`, with Chromium and pngquant installed and the model `smollm2` in the store.

A server is started on a free port, a few clients keep it busy, and the page is looked at in both colour schemes, wide and narrow. On a busy machine the figures are poor.
Everything that is seen is real: the answers are the model's, the figures this machine's.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tests.api.children import started
from tests.browser.chromium import Page, find_chromium, open_browser

STATUS, CHAT = (940, 830), (400, 830)
"""Of the two views, in pixels."""
FRAME = """<!doctype html><style>
body {{ margin: 0; padding: 14px; display: flex; gap: 14px; background: {ground}; }}
img {{ border: 1px solid {edge}; border-radius: 12px; display: block; }}
</style><img src="data:image/png;base64,{status}"><img src="data:image/png;base64,{chat}">"""
GROUNDS = {"light": ("#efede6", "#d5d2c8"), "dark": ("#0d0f12", "#343a42")}
CLIENTS = 9
SEATS = 6
WATCHED_SECONDS = 70
"""How long the status view has been looked at when its picture is taken, so that the plots have something to show."""
QUESTIONS = (
    "Why is the sky blue?",
    "Name three primary colours and say where each is found in nature.",
    "Write a short story about a lighthouse keeper and a gull.",
    "Explain what a queue is to a child.",
    "What is a good way to learn to cook?",
)
ASKED = "Give me two tips for a quiet morning, as a list."
TOOK = "document.querySelector('.turn.assistant:last-of-type')?.getAttribute('aria-busy') === 'false'"


@contextmanager
def serving() -> Iterator[str]:
    """`tripower serve smollm2` on a free port."""
    command = [sys.executable, "-m", "tripower", "serve", "smollm2", "--port", "0", "--set", f"scheduler.batch_members={SEATS}"]
    with started(command, Path.home() / ".tripower") as child:
        yield next(word for word in child.read_until("listens at").split() if word.startswith("http"))


@contextmanager
def load(url: str) -> Iterator[None]:
    """A few clients that ask one thing after the other."""
    over = threading.Event()

    def client(number: int) -> None:
        chance = random.Random(number)
        while not over.is_set():
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": chance.choice(QUESTIONS)}],
                "max_tokens": chance.choice((60, 120, 240, 400)),
                "stream": True,
            }
            headers = {"content-type": "application/json", "x-request-id": f"client-{number}-{chance.randrange(1000):03}"}
            asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
            with suppress(OSError), urllib.request.urlopen(asked) as answer:  # the server ends before its clients
                while answer.readline() and not over.is_set():
                    pass
            over.wait(chance.random() * 2)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(1, CLIENTS + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()


def ask(page: Page, url: str) -> None:
    """The conversation of the pictures: one question, answered."""
    page.open(f"{url}/ui")
    page.wait("document.querySelector('#model').options.length > 0")
    page.evaluate("document.querySelector('[name=temperature]').value = '0'")
    page.click("#prompt")
    page.type(ASKED)
    page.press("Enter")
    page.wait(TOOK)


def seen(page: Page, size: tuple[int, int], scheme: str) -> bytes:
    """A PNG of the page as it is in this size and scheme."""
    page.prefer(color_scheme=scheme)
    page.resize(*size)
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 1500))")
    return page.screenshot()


def write(name: str, picture: bytes) -> None:
    if program := shutil.which("pngquant"):  # a quarter of the size, and nobody sees the difference
        picture = subprocess.run([program, "--quality", "80-100", "-"], input=picture, capture_output=True, check=True).stdout
    (FOLDER / name).write_bytes(picture)
    print(f"{name}: {len(picture):,} bytes")


def side_by_side(page: Page, scheme: str, status: bytes, chat: bytes) -> bytes:
    """Both views in one picture."""
    ground, edge = GROUNDS[scheme]
    status_text, chat_text = (base64.b64encode(picture).decode() for picture in (status, chat))
    page.resize(STATUS[0] + CHAT[0] + 46, STATUS[1] + 30)
    page.show(FRAME.format(ground=ground, edge=edge, status=status_text, chat=chat_text))
    return page.screenshot()


def main() -> int:
    program = find_chromium()
    if program is None:
        print("no Chromium is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, serving() as url, open_browser(program, Path(folder)) as browser:
        with browser.page() as page:
            ask(page, url)
            chats = {scheme: seen(page, CHAT, scheme) for scheme in GROUNDS}
            write("chat-light.png", seen(page, (1000, 700), "light"))
        with load(url), browser.page() as page, browser.page() as frame:
            page.open(f"{url}/ui#status")
            for _ in range(WATCHED_SECONDS):
                page.evaluate("new Promise((resolve) => setTimeout(resolve, 1000))")
            write("status-narrow-dark.png", seen(page, (400, 1400), "dark"))
            for scheme in GROUNDS:
                write(f"live-{scheme}.png", side_by_side(frame, scheme, seen(page, STATUS, scheme), chats[scheme]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

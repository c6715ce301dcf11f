"""Chromium as people use it, driven over its DevTools protocol: JSON through two pipes, so nothing but the browser has to be installed.

`press`, `type` and `click` are real input events: they go where the keyboard's focus and the mouse are. What the browser complains about
is gathered in `Page.problems`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

VARIABLE = "TRIPOWER_TEST_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 30.0
"""Seconds after which the browser counts as hung: never reached by a test that passes."""
POLL_SECONDS = 0.02
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-lcd-text",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
)
ON_PIPES = (
    "import fcntl, os, sys; "
    "read, write = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 16) for each in sys.argv[1:3]); "
    "os.dup2(read, 3); os.dup2(write, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Becomes the browser, with the pipes where it looks for them."""
KEYS = {
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Escape": {"code": "Escape", "windowsVirtualKeyCode": 27},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "ArrowDown": {"code": "ArrowDown", "windowsVirtualKeyCode": 40},
}
SHIFT = 8


def find_chromium() -> str | None:
    """The browser that is named in the environment, or one that is installed."""
    named = os.environ.get(VARIABLE)
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Connection:
    """Calls and events, each a JSON text that ends with a zero byte."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._received = b""
        self._last = 0
        self.pages: dict[str, Page] = {}

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Call and wait for the answer; events that come before it go to their pages. Raises `RuntimeError` for a refusal."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            page = self.pages.get(answer.get("sessionId", ""))
            if page is not None and "method" in answer:
                page.hear(answer["method"], answer["params"])

    def _receive(self) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while b"\0" not in self._received:
            assert poll.poll(1000 * PATIENCE), "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(message))


@attrs.define(eq=False)
class Page:
    """One tab, with storage of its own."""

    connection: Connection
    session: str
    context: str
    problems: list[str] = attrs.Factory(list)
    """Errors and warnings of the console, and what the browser itself has to say about the page."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.connection.call(method, self.session, **parameters)

    def hear(self, method: str, event: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning", "assert"):
                self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in event["args"]))
            case "Runtime.exceptionThrown":
                details = event["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                self.problems.append(event["entry"]["text"])

    def open(self, url: str) -> None:
        """Go there and wait until the page is complete."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def show(self, markup: str) -> None:
        """Make this the whole document."""
        frame = self.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self.call("Page.setDocumentContent", frameId=frame, html=markup)
        self.wait("[...document.images].every((image) => image.complete)")

    def reload(self) -> None:
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, as JSON; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"].get("exception", answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true; returns its value."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(RuntimeError):  # between two documents there is nothing that could evaluate
                value = self.evaluate(expression)
                if value not in (None, False, 0, ""):  # an element is {}
                    return value
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"never: {expression}\n{self.evaluate('document.body.innerText')}\n{self.problems}")

    def text(self, selector: str) -> str:
        """What people see of the first element that matches."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def count(self, selector: str) -> int:
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        known = KEYS[key]
        kind = "keyDown" if "text" in known else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers, **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers, **{**known, "text": ""})

    def click(self, selector: str) -> None:
        """In the middle of the first element that matches and is seen."""
        found = json.dumps(selector)
        place = self.wait(
            f"(() => {{ const box = [...document.querySelectorAll({found})].map((each) => each.getBoundingClientRect())"
            ".find((each) => each.width && each.height); return box && [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def resize(self, width: int, height: int, *, scale: float = 1, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def prefer(self, **features: str) -> None:
        """What the person in front prefers, such as `color_scheme="dark"`."""
        chosen = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=chosen)

    def allow(self, *permissions: str) -> None:
        """As if the person in front had said yes."""
        self.connection.call("Browser.grantPermissions", permissions=list(permissions), browserContextId=self.context)

    def screenshot(self) -> bytes:
        """PNG of what is in view."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


class Browser:
    """A running browser."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def page(self) -> Iterator[Page]:
        """A new tab that shares nothing with any other."""
        call = self._connection.call
        context = call("Target.createBrowserContext")["browserContextId"]
        target = call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._connection.pages[session] = Page(self._connection, session, context)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.resize(1200, 900)
        try:
            yield page
        finally:
            del self._connection.pages[session]
            call("Target.disposeBrowserContext", browserContextId=context)


@contextmanager
def open_browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start the browser with a profile in `folder`, and end it with the block."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    flags = [*FLAGS, f"--user-data-dir={folder}"]
    if os.getuid() == 0:
        flags.append("--no-sandbox")  # it needs a user that is not root
    process = subprocess.Popen(
        [sys.executable, "-c", ON_PIPES, str(to_browser), str(from_browser), program, *flags],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        connection = Connection(to_us, from_us)
        yield Browser(connection)
        with suppress(AssertionError, RuntimeError, BrokenPipeError):
            connection.call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # its own children too; the group is ours, since it began a session
        process.wait()
        os.close(to_us)
        os.close(from_us)

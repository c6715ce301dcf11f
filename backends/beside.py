"""Work that would hold the lane for long and needs nothing of it, on a thread of its own while the lane goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 0.002
"""How long the lane waits before it gives other jobs their turn."""


def beside(work: Callable[[], T]) -> Generator[None, None, T]:
    """Run `work` and return its result or raise its error; yields at boundaries meanwhile, once at least. Left early, it waits for the end."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="tripower-beside")
    thread.start()
    try:
        while True:
            thread.join(WAIT_SECONDS)
            yield
            if not thread.is_alive():
                break
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return results[0]

"""Work that would hold the lane for long and needs nothing of it, on a thread of its own while the lane goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

WAIT_SECONDS = 0.002
"""How long the lane waits before it gives other jobs their turn."""


def beside(
    work: Callable[[], T],
    meanwhile: Generator[None, None, U],
    *,
    on_wait: Callable[[], None] = lambda: None,
    discard: Callable[[U], None] = lambda result: None,
) -> Generator[None, None, tuple[T, U]]:
    """Run `work` on a thread and `meanwhile` here, a boundary at a time; the results of both, or the error of either.

    `on_wait` is called when `meanwhile` has ended, and again at each boundary while `work` goes on. If `work` fails after that, the
    other's result is given to `discard`. Left early, it waits for the thread.
    """
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
        result = yield from _until_failure(meanwhile, errors)
        try:
            on_wait()
            while thread.is_alive():
                thread.join(WAIT_SECONDS)
                yield
                on_wait()
            if errors:
                raise errors[0]
        except BaseException:
            discard(result)
            raise
        return results[0], result
    finally:
        thread.join()


def _until_failure(meanwhile: Generator[None, None, U], errors: list[BaseException]) -> Generator[None, None, U]:
    """`meanwhile`, given up at its next boundary once there is an error."""
    try:
        while True:
            try:
                next(meanwhile)
            except StopIteration as end:
                result: U = end.value
                return result
            if errors:
                raise errors[0]
            yield
    finally:
        meanwhile.close()

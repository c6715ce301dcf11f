"""The one kind of failure that a load has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tripower.runtime.kernel.errors import ModelRefused, TripowerError


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Maps whatever is not ours to `ModelRefused`: for the caller every failure to load the model `name` has one kind."""
    try:
        yield
    except TripowerError:
        raise
    except MemoryError as error:
        raise ModelRefused(f"there is not enough memory to load {name}", code="out_of_memory") from error
    except Exception as error:
        raise ModelRefused(f"{name} could not be loaded: {error}") from error

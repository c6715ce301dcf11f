"""The toy engine: deterministic, instant, real in its shape."""

from tripower.backends.toy.backend import ToyBackend
from tripower.backends.toy.engine import ToyEngine
from tripower.backends.toy.text import ToyText

__all__ = ["ToyBackend", "ToyEngine", "ToyText"]

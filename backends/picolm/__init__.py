"""Our own engine: GGUF models resident in float32, in plain torch. The reference that faster paths are checked against."""

from tripower.backends.picolm.backend import PicolmBackend
from tripower.backends.picolm.engine import PicolmEngine

__all__ = ["PicolmBackend", "PicolmEngine"]

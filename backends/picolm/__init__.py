"""Our own engine: GGUF and SafeTensors models, resident. Generated kernels where there is LLVM, plain torch float32 elsewhere.

`decoder` says as data what a model is; `native` runs it fast, `torch_model` readably. Both give a `StepEngine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tripower.backends.picolm.backend import PicolmBackend
    from tripower.backends.picolm.engine import PicolmEngine

__all__ = ["PicolmBackend", "PicolmEngine"]


def __getattr__(name: str) -> Any:
    if name == "PicolmBackend":
        from tripower.backends.picolm.backend import PicolmBackend

        return PicolmBackend
    if name == "PicolmEngine":
        from tripower.backends.picolm.engine import PicolmEngine

        return PicolmEngine
    raise AttributeError(name)

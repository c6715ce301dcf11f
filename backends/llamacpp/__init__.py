"""llama.cpp as a row engine under our scheduler, sampler and text layer. Importing this loads nothing native."""

from tripower.backends.llamacpp.backend import LlamacppBackend

__all__ = ["LlamacppBackend"]

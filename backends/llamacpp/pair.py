"""Which declarations and which library are used together.

The wheel `llama-cpp-py-sync` has cffi declarations of llama.cpp's C API, but its own library wants a newer glibc than many machines
have. The wheel `xllamacpp` is a portable build of llama.cpp's server whose extension module exports the same API. Declarations over
a library of another build are sound only if somebody has tried that pair, so there is a table of tried pairs, and the probe looks
again on this machine before a pair is used here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Generator
from pathlib import Path

import msgspec

from tripower.runtime.kernel.errors import ModelRefused

DECLARATIONS = ("llama-cpp-py-sync", "llama_cpp_py_sync", "_cffi_bindings.py")
LIBRARY = ("xllamacpp", "xllamacpp", "xllamacpp*.so")
"""Name of the distribution, of its package, and of the file in it that is used."""

TRIED = (("0.11548", "2026.10.11549"),)
"""Versions of the two that have been run together, the build of the declarations first."""

CURE = "pip install 'tripower[llamacpp]'"
DIGEST_BLOCK_BYTES = 16 << 20


class Pair(msgspec.Struct, frozen=True):
    """Two files and the versions that they came with; the library's is empty where a path was given for it."""

    declarations: Path
    library: Path
    declarations_version: str
    library_version: str


def find_pair(library: Path | None = None) -> Pair:
    """The installed pair, or the declarations with the library at this path. Imports neither; blocks for small reads.

    Raises `ModelRefused`: `backend_not_installed` for a package that is missing, `native_incompatible` for versions that nobody
    tried together or a file that is not there.
    """
    if importlib.util.find_spec("cffi") is None:
        raise _not_installed("cffi")
    declarations, declarations_version = _locate(*DECLARATIONS)
    if library is not None:
        if not library.is_file():
            raise incompatible(f"there is no library at {library}")
        return Pair(declarations, library.resolve(), declarations_version, "")
    found, library_version = _locate(*LIBRARY)
    if (declarations_version, library_version) not in TRIED:
        required = " or ".join(f"{DECLARATIONS[0]} {one} with {LIBRARY[0]} {other}" for one, other in TRIED)
        raise incompatible(
            f"{DECLARATIONS[0]} {declarations_version} with {LIBRARY[0]} {library_version} is a pair that nobody has tried; "
            f"required: {required}"
        )
    return Pair(declarations, found, declarations_version, library_version)


def digest(path: Path) -> Generator[None, None, str]:
    """SHA-256 of a file in hex, a boundary after each block: a library has a hundred megabytes."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(DIGEST_BLOCK_BYTES):
            state.update(block)
            yield
    return state.hexdigest()


def incompatible(message: str) -> ModelRefused:
    """A library that cannot be used here; the message gets the cure."""
    return ModelRefused(f"llama.cpp cannot be used: {message} ({CURE})", code="native_incompatible", param="backend")


def _locate(distribution: str, package: str, pattern: str) -> tuple[Path, str]:
    """A file of an installed package, found without importing it, and the version of its distribution."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise _not_installed(distribution)
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob(pattern)):
            return path.resolve(), importlib.metadata.version(distribution)
    raise incompatible(f"the package {distribution} is installed without its file {pattern}")


def _not_installed(package: str) -> ModelRefused:
    return ModelRefused(
        f"the backend llamacpp needs the package {package}: {CURE}", code="backend_not_installed", param="backend"
    )

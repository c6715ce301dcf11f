"""IR to code of this process, kept on disk so that only the first load of a kernel set on a machine compiles.

The key names everything that the code depends on: the sources of this package, the target, LLVM's version, and the parameters that the
builder was given. A kept object is checked by its own digest; whatever is wrong with it, it is built again. The cache is a
convenience: a folder that cannot be written costs time, nothing else.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from tripower.backends.picolm.native.target import Target, target_machine

log = logging.getLogger("tripower.picolm")

CACHE_VARIABLE = "TRIPOWER_KERNEL_CACHE"
DIGEST_BYTES = 32
_LIVE: dict[object, Code] = {}
"""Compiled code stays for the life of the process, since worker threads park in it, and serves every model that needs the same."""


class Code:
    """Compiled functions, by name."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def address(self, name: str) -> int:
        """Where a function begins."""
        found = int(self._engine.get_function_address(name))
        if not found:
            raise LookupError(f"no compiled function {name}")
        return found

    def function(self, name: str, result: Any, *parameters: Any) -> Callable[..., Any]:
        """A function to call by ctypes; the interpreter lock is released while it runs."""
        return ctypes.CFUNCTYPE(result, *parameters)(self.address(name))


def compile_module(build: Callable[[ir.Module], None], target: Target, key: Sequence[object] = ()) -> Code:
    """Run `build` on an empty module and compile it, or take what the same key gave before.

    `key` must hold whatever `build` depends on besides the sources of this package; without one nothing is kept. Blocks: a few
    seconds for a whole engine, milliseconds when it is kept.
    """
    name = (target, *key) if key else object()
    if name not in _LIVE:
        _LIVE[name] = _load(build, target, key)
    return _LIVE[name]


def _load(build: Callable[[ir.Module], None], target: Target, key: Sequence[object]) -> Code:
    path = _path(target, key) if key else None
    kept = None if path is None else _read(path)
    if kept is None:
        kept = _object_of(build, target)
        if path is not None:
            _write(path, kept)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target_machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(kept))
    engine.finalize_object()
    return Code(engine)


def _object_of(build: Callable[[ir.Module], None], target: Target) -> bytes:
    module = ir.Module("tripower")
    module.triple = llvm.get_default_triple()
    build(module)
    machine = target_machine(target)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    # The kernels are written as they shall run, so a few passes do what all of O2 would, in a ninth of the time; and nothing here
    # could reorder floating-point arithmetic.
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_rotate_pass()
    for function in parsed.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return bytes(machine.emit_object(parsed))


@functools.cache
def sources_digest() -> bytes:
    """Of every source file of the native path."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def kernel_cache() -> Path:
    """The folder for compiled kernels and what was measured of them: `TRIPOWER_KERNEL_CACHE`, else in the store's home."""
    stated = os.environ.get(CACHE_VARIABLE)
    if stated:
        return Path(stated)
    from tripower.runtime.store import home_directory

    return home_directory() / "kernels"


def _path(target: Target, key: Sequence[object]) -> Path | None:
    digest = hashlib.sha256(sources_digest())
    digest.update(repr((target, llvmlite.__version__, llvm.llvm_version_info, tuple(key))).encode())
    try:
        return kernel_cache() / f"{target.name}-{digest.hexdigest()[:32]}.o"
    except (OSError, RuntimeError):  # no home folder
        return None


def _read(path: Path) -> bytes | None:
    try:
        if not path.is_file():  # whatever else has that name must not be opened: a pipe would never end
            return None
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    try:
        write_whole(path, hashlib.sha256(code).digest() + code)
    except OSError as error:
        log.warning(
            "compiled code cannot be kept in %s (%s): every load will compile again; set %s", path.parent, error, CACHE_VARIABLE
        )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees a part of it. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

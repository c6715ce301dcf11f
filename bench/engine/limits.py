"""What the machine allows: bytes a second that all threads together can read, multiply-adds a second that they can do.

Both are measured here and now, with loops that do nothing else, because the data sheet of a processor says little about a virtual
machine. The loops are generated for every vector width that the processor has, and the best figure counts. They know nothing of our
kernels. Reading adds up integers from a buffer that no cache holds, in eight independent sums; multiplying keeps twelve independent
chains of `a * x + b` in registers, more than latency times units of any processor at hand.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHAINS = 12
SUMS = 8
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CACHE_BYTES_DEFAULT = 64 << 20
BUFFER_CACHES = 4
"""How many times the last-level cache the buffer is."""
BUFFER_BYTES_MIN = 256 << 20
FMA_ITERATIONS = 4_000_000
PASSES = 5

Call = Callable[[], object]


def read_bandwidth(threads: int, *, passes: int = PASSES, buffer_bytes: int | None = None) -> float:
    """Bytes a second that `threads` threads read out of memory together: the best of some passes. Blocks for about a second."""
    size = buffer_bytes or max(BUFFER_BYTES_MIN, BUFFER_CACHES * last_level_cache_bytes())
    buffer = np.ones(size // 4, np.int32)  # written, so that every page is there
    best = 0.0
    for lanes in vector_lanes():
        read, vectors = _loops(lanes).read, size // 4 // threads // (lanes * SUMS) * SUMS
        calls = [
            functools.partial(read, buffer.ctypes.data + part * vectors * lanes * 4, vectors // SUMS) for part in range(threads)
        ]
        read_bytes = threads * vectors * lanes * 4
        best = max(best, *(read_bytes / seconds_together(calls) for _ in range(passes)))
    return best


def fma_peak(threads: int, *, passes: int = PASSES, iterations: int = FMA_ITERATIONS) -> float:
    """float32 multiply-adds a second of `threads` threads: the best of some passes and widths. Blocks for about a second."""
    best = 0.0
    for lanes in vector_lanes():
        call = functools.partial(_loops(lanes).multiply_add, iterations, 0.5, 0.25)
        done = threads * iterations * CHAINS * lanes
        best = max(best, *(done / seconds_together([call] * threads) for _ in range(passes)))
    return best


def seconds_together(calls: Sequence[Call]) -> float:
    """Run each call on a thread of its own, all beginning at once; seconds until the last has ended. Blocks."""
    ready = threading.Barrier(len(calls) + 1)

    def run(call: Call) -> None:
        ready.wait()
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def last_level_cache_bytes(caches: Path = CACHES) -> int:
    """Size of the largest cache that the first processor sees; a large guess where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text().strip()
        if text[:-1].isdecimal() and text[-1] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes, default=CACHE_BYTES_DEFAULT)


def vector_lanes() -> list[int]:
    """float32 elements of the vectors that this processor has, widest first."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return [lanes for lanes, feature in ((16, "avx512f"), (8, "avx")) if features.get(feature)] + [4]


# The loops.


class _Loops:
    """Compiled code for one width; the interpreter lock is free while it runs."""

    def __init__(self, lanes: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(_source(lanes))
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
        )
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        self.read: Any = self._function("read_all", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
        self.multiply_add: Any = self._function("multiply_add", ctypes.c_float, ctypes.c_int64, ctypes.c_float, ctypes.c_float)

    def _function(self, name: str, result: Any, *parameters: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *parameters)(self._engine.get_function_address(name))


@functools.cache
def _loops(lanes: int) -> _Loops:
    return _Loops(lanes)


def _source(lanes: int) -> str:
    from llvmlite import ir

    module = ir.Module("limits")
    _build_read(module, lanes)
    _build_multiply_add(module, lanes)
    return str(module)


def _build_read(module: Any, lanes: int) -> None:
    """i32 read_all(ptr, i64 groups): the sum of `groups` times `SUMS` vectors."""
    from llvmlite import ir

    word, count, pointer = ir.IntType(32), ir.IntType(64), ir.PointerType()
    wide = ir.VectorType(word, lanes)
    function = ir.Function(module, ir.FunctionType(word, (pointer, count)), "read_all")

    def body(builder: Any, step: Any, sums: list[Any]) -> list[Any]:
        first = builder.mul(step, ir.Constant(count, SUMS))
        added = []
        for number, total in enumerate(sums):
            index = builder.add(first, ir.Constant(count, number))
            address = builder.gep(function.args[0], [index], source_etype=wide)
            added.append(builder.add(total, builder.load(address, typ=wide, align=4)))
        return added

    zeros = [ir.Constant(wide, [0] * lanes)] * SUMS
    builder, sums = _loop(function, function.args[1], zeros, body)
    _return_total(builder, sums, lanes, builder.add)


def _build_multiply_add(module: Any, lanes: int) -> None:
    """float multiply_add(i64 iterations, float a, float b): `CHAINS` chains of x = a * x + b."""
    from llvmlite import ir

    single, count = ir.FloatType(), ir.IntType(64)
    wide = ir.VectorType(single, lanes)
    function = ir.Function(module, ir.FunctionType(single, (count, single, single)), "multiply_add")
    fused = ir.Function(module, ir.FunctionType(wide, (wide, wide, wide)), f"llvm.fmuladd.v{lanes}f32")
    spread: list[Any] = []

    def body(builder: Any, step: Any, chains: list[Any]) -> list[Any]:
        return [builder.call(fused, (chain, *spread)) for chain in chains]

    entry = ir.IRBuilder(function.append_basic_block("entry"))
    for argument in function.args[1:]:
        vector: Any = ir.Constant(wide, ir.Undefined)
        for lane in range(lanes):
            vector = entry.insert_element(vector, argument, ir.Constant(ir.IntType(32), lane))
        spread.append(vector)
    starts = [ir.Constant(wide, [float(chain)] * lanes) for chain in range(CHAINS)]
    builder, chains = _loop(function, function.args[0], starts, body, entry)
    _return_total(builder, chains, lanes, builder.fadd)


def _loop(
    function: Any, times: Any, starts: list[Any], body: Callable[[Any, Any, list[Any]], list[Any]], entry: Any = None
) -> tuple[Any, list[Any]]:
    """`times` rounds of `body`, at least one, over values kept in registers; a builder after the loop and the last values."""
    from llvmlite import ir

    entry = entry or ir.IRBuilder(function.append_basic_block("entry"))
    inside, after = function.append_basic_block("inside"), function.append_basic_block("after")
    entry.branch(inside)
    builder = ir.IRBuilder(inside)
    step = builder.phi(times.type)
    values = [builder.phi(start.type) for start in starts]
    following = body(builder, step, values)
    next_step = builder.add(step, ir.Constant(times.type, 1))
    step.add_incoming(ir.Constant(times.type, 0), entry.block)
    step.add_incoming(next_step, inside)
    for value, start, after_it in zip(values, starts, following, strict=True):
        value.add_incoming(start, entry.block)
        value.add_incoming(after_it, inside)
    builder.cbranch(builder.icmp_signed("<", next_step, times), inside, after)
    return ir.IRBuilder(after), following


def _return_total(builder: Any, vectors: list[Any], lanes: int, add: Callable[[Any, Any], Any]) -> None:
    """Add up everything, so that nothing can be left out."""
    from llvmlite import ir

    total = functools.reduce(add, vectors)
    parts = [builder.extract_element(total, ir.Constant(ir.IntType(32), lane)) for lane in range(lanes)]
    builder.ret(functools.reduce(add, parts))

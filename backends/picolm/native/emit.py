"""How kernels write LLVM IR: a thin layer over llvmlite's builder with loops, variables and vectors.

A kernel is Python that runs once and leaves a function in a module. Local state lives in `Variable`s (stack slots, which LLVM turns
into registers), loops and conditions are `with` blocks. Pointers are opaque: each load and store names its type. Nothing here may
reorder floating-point arithmetic: what is emitted is what is computed, in that order, at every width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID, PTR = ir.VoidType(), ir.PointerType()
Value = Any
"""llvmlite has no types for mypy; this marks an `ir.Value`."""

SIZES = {"half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8}


def vector(element: Any, lanes: int) -> Any:
    """The type of `lanes` elements; one element is a plain scalar type."""
    return ir.VectorType(element, lanes) if lanes > 1 else element


def constant(kind: Any, value: float) -> Value:
    """A constant of a scalar type, or of a vector with that value in each lane."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def i32(value: int) -> Value:
    return ir.Constant(I32, value)


def i64(value: int) -> Value:
    return ir.Constant(I64, value)


def f32(value: float) -> Value:
    return ir.Constant(F32, value)


class Variable:
    """A local variable."""

    def __init__(self, function: Function, kind: Any, initial: Value) -> None:
        self._function = function
        self.kind = kind
        with function.b.goto_entry_block():
            self._slot = function.b.alloca(kind)
        self.set(initial)

    @property
    def address(self) -> Value:
        """For functions that fill it in or read it."""
        return self._slot

    def get(self) -> Value:
        return self._function.b.load(self._slot, typ=self.kind)

    def set(self, value: Value) -> None:
        self._function.b.store(value, self._slot)

    def add(self, value: Value) -> None:
        """Integer `+=`."""
        self.set(self._function.b.add(self.get(), value))


class Function:
    """A function under construction. `b` is llvmlite's builder; the methods here are what it lacks."""

    def __init__(self, module: ir.Module, name: str, parameters: Sequence[Any], result: Any = VOID) -> None:
        self.module = module
        self.value = ir.Function(module, ir.FunctionType(result, list(parameters)), name)
        self.args = self.value.args
        self.b = ir.IRBuilder(self.value.append_basic_block("entry"))

    # Control.

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """`for index in range(start, stop, step)` over int64; the block's value is the index."""
        b = self.b
        before = b.block
        head, body = self.value.append_basic_block("loop"), self.value.append_basic_block("body")
        after = self.value.append_basic_block("after")
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", index, stop), body, after)
        b.position_at_end(body)
        yield index
        following = b.add(index, i64(step))
        index.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)

    @contextmanager
    def forever(self) -> Iterator[Any]:
        """`while True`; the block's value is the basic block to branch to in order to leave."""
        head, after = self.value.append_basic_block("forever"), self.value.append_basic_block("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        yield after
        if not self.b.block.is_terminated:
            self.b.branch(head)
        self.b.position_at_end(after)

    def leave_if(self, condition: Value, after: Any) -> None:
        """Leave a `forever` block."""
        going_on = self.value.append_basic_block("on")
        self.b.cbranch(condition, after, going_on)
        self.b.position_at_end(going_on)

    def again_if(self, condition: Value, head: Any) -> None:
        """Branch back to `head` if the condition holds, else go on."""
        self.leave_if(condition, head)

    def variable(self, kind: Any, initial: Value | float = 0) -> Variable:
        return Variable(self, kind, initial if isinstance(initial, ir.Value) else constant(kind, initial))

    # Memory.

    def at(self, pointer: Value, index: Value | int, kind: Any) -> Value:
        """The address of element `index` of an array of `kind`."""
        where = i64(index) if isinstance(index, int) else index
        return self.b.gep(pointer, [where], source_etype=kind)

    def load(self, pointer: Value, index: Value | int, kind: Any) -> Value:
        """Element `index` of an array of scalars."""
        return self.b.load(self.at(pointer, index, kind), typ=kind)

    def store(self, value: Value, pointer: Value, index: Value | int) -> None:
        """Element `index` of an array of the value's scalar type."""
        self.b.store(value, self.at(pointer, index, value.type))

    def load_vector(self, pointer: Value, index: Value | int, element: Any, lanes: int) -> Value:
        """`lanes` elements from element `index` on, at any address."""
        where = self.at(pointer, index, element)
        return self.b.load(where, align=_size(element), typ=vector(element, lanes))

    def store_vector(self, value: Value, pointer: Value, index: Value | int) -> None:
        """All lanes to element `index` and those after it, at any address."""
        element = value.type.element if isinstance(value.type, ir.VectorType) else value.type
        self.b.store(value, self.at(pointer, index, element), align=_size(element))

    def load_shared(self, pointer: Value, index: Value | int) -> Value:
        """An int64 word that other threads write; what they wrote before it is visible afterwards."""
        return self.b.load_atomic(self.at(pointer, index, I64), "acquire", 8, typ=I64)

    def store_shared(self, value: Value, pointer: Value, index: Value | int) -> None:
        """An int64 word that other threads read, after everything that was written before."""
        self.b.atomic_rmw("xchg", self.at(pointer, index, I64), value, "acq_rel")  # llvmlite's own store wants typed pointers

    # Arithmetic.

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in every lane."""
        if lanes == 1:
            return value
        kind = ir.VectorType(value.type, lanes)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, i32(0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))

    def intrinsic(self, name: str, kinds: Sequence[Any], arguments: Sequence[Value], result: Any = None) -> Value:
        """Call `llvm.NAME`, overloaded on `kinds`; the result has the first argument's type unless it is given."""
        suffix = "".join(f".{_mangled(kind)}" for kind in kinds)
        full = f"llvm.{name}{suffix}"
        known = self.module.globals.get(full)
        if known is None:
            signature = ir.FunctionType(arguments[0].type if result is None else result, [each.type for each in arguments])
            known = ir.Function(self.module, signature, full)
        return self.b.call(known, list(arguments))

    def external(self, name: str, result: Any, arguments: Sequence[Value]) -> Value:
        """Call a function of the C library."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [each.type for each in arguments]), name)
        return self.b.call(known, list(arguments))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c`, rounded once."""
        return self.intrinsic("fma", [a.type], [a, b, c])

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger of two floats; if one is NaN, `b`."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def halves(self, value: Value) -> tuple[Value, Value]:
        """The lower and the upper half of a vector's lanes."""
        lanes = value.type.count // 2
        undefined = ir.Constant(value.type, ir.Undefined)
        low = self.b.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes))))
        high = self.b.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes, 2 * lanes))))
        return low, high

    def sum_lanes(self, value: Value) -> Value:
        """The sum of all float lanes: lower half plus upper half, until one is left. The order depends on the lane count only."""
        while isinstance(value.type, ir.VectorType) and value.type.count > 2:
            value = self.b.fadd(*self.halves(value))
        return self.b.fadd(self.b.extract_element(value, i32(0)), self.b.extract_element(value, i32(1)))

    def sum_vectors(self, values: Sequence[Value]) -> Value:
        """The sum of all float lanes of 1, 2, 4, … vectors, added in halves as if they were one wide vector."""
        while len(values) > 1:
            half = len(values) // 2
            values = [self.b.fadd(first, second) for first, second in zip(values[:half], values[half:], strict=True)]
        return self.sum_lanes(values[0])

    def maximum_lanes(self, value: Value) -> Value:
        """The largest float lane."""
        while isinstance(value.type, ir.VectorType) and value.type.count > 2:
            value = self.maximum(*self.halves(value))
        return self.maximum(self.b.extract_element(value, i32(0)), self.b.extract_element(value, i32(1)))

    def done(self, value: Value | None = None) -> None:
        """Return."""
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(value)


class Kernel(Function):
    """`void name(ptr args, i64 tile, ptr scratch)`: one tile of one part of a stage.

    `args` points to int64 words that the program's builder filled: addresses and sizes. `scratch` is the calling thread's own memory.
    """

    def __init__(self, module: ir.Module, name: str) -> None:
        super().__init__(module, name, [PTR, I64, PTR])
        self.words, self.tile, self.scratch = self.args

    def number(self, word: int) -> Value:
        """Word `word` as an int64."""
        return self.load(self.words, word, I64)

    def pointer(self, word: int) -> Value:
        """Word `word` as an address."""
        return self.load(self.words, word, PTR)


def _size(kind: Any) -> int:
    return SIZES[str(kind)]


def _mangled(kind: Any) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_mangled(kind.element)}"
    return {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(str(kind), str(kind))

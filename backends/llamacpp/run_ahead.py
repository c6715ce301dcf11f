"""Plain greedy decoding without Python between the steps: the shape that nearly all steps of a server under load have.

The loop reads the step table, fills the batch, calls llama.cpp, takes the largest logit of each row, writes the results into the table
and wakes the Trio loop through the port's descriptor. It ends at the first boundary at which it is asked to, so whoever joins, leaves
or wants the lane waits for one step. What it saves is more than its own time: after a pass over all weights nothing of the interpreter
is left in the caches, and a busy Trio loop would make the lane wait for the interpreter's lock at every step.

Everything else goes step by step through Python: prompts, and batches in which somebody draws by chance, with penalties or under a
constraint, or wants to be told of log probabilities. The tokens are the same on both ways.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from tripower.backends.llamacpp.native import Context
from tripower.backends.picolm.native.emit import I1, I8, I32, I64, PTR, Function, Value, constant, i32, i64, vector
from tripower.backends.picolm.native.target import Target, host_target, target_machine
from tripower.backends.sampling import is_plain_greedy
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN, SIGNAL_FD, STEPS_DONE, STOP, TURN

F32 = ir.FloatType()
WORDS = (
    "control", "drawn", "evaluated", "slots_max", "last", "position", "remaining", "output_index",  # of the step table
    "slots", "steps_until", "order", "place", "alive", "end_ids", "end_from", "row_slot",  # of the job
    "batch", "token", "row_position", "row_place", "wanted", "context", "decode", "logits_of", "width",  # of llama.cpp
)  # fmt: skip
"""The words of the loop's argument, int64: addresses and numbers."""

STEPS_AHEAD = 32
"""Steps of one call: a device that sees no boundary for minutes takes its lane for stuck."""

SHIM = """
define i32 @call_decode(ptr %decode, ptr %context, ptr %batch) {{
  %status = call i32 %decode(ptr %context, ptr {by_value} %batch)
  ret i32 %status
}}
define ptr @call_logits(ptr %logits_of, ptr %context) {{
  %logits = call ptr %logits_of(ptr %context)
  ret ptr %logits
}}
"""
BATCH_BYTES = 56
"""`sizeof(llama_batch)`: a struct that long is passed in memory, on the stack by x86-64's rules and by its address elsewhere."""


def decodes_plainly(table: StepTable) -> bool:
    """Whether every slot that goes on evaluates one token and draws the likeliest next one, and nobody asks Python for anything."""
    going_on = [slot for slot, pending in enumerate(table.pending) if pending]
    return (
        bool(going_on)
        and not table.stepwise
        and all(
            len(table.pending[slot]) == 1
            and table.remaining[slot] > 0
            and is_plain_greedy(table.sampling[slot], int(table.output_index[slot]))
            for slot in going_on
        )
    )


class RunAhead:
    """The loop over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._code = compiled(host_target())  # what is compiled lives as long as this
        self._call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self._code.get_function_address("run_ahead"))

    def run(self, table: StepTable, places: Mapping[int, int]) -> int:
        """Run until a boundary at which the table ends, is stopped, or wants to give a turn; `decodes_plainly` must hold.

        Commits the steps, Python's columns of the table included. Returns what `llama_decode` answered last: 0, or why the step after
        the committed ones failed, which may have been evaluated in part. Blocks for the length of the steps, without Python.
        """
        slots, first = table.slots, table.steps_done
        place = np.array([places.get(sequence, 0) for sequence in table.sequence[:slots].tolist()], np.int64)
        arrays = {
            "order": np.argsort(place),
            "place": place,
            "alive": np.array([bool(pending) for pending in table.pending], np.int64),
            "end_ids": np.array([end for ends in table.ends for end in sorted(ends)], np.int64),
            "end_from": np.cumsum([0, *(len(ends) for ends in table.ends)], dtype=np.int64),
            "row_slot": np.zeros(slots, np.int64),
        }
        for slot, pending in enumerate(table.pending):
            if pending:
                table.last[slot] = pending[0]
        of_table = {
            name: getattr(table, name)
            for name in ("control", "drawn", "evaluated", "last", "position", "remaining", "output_index")
        }
        words = {name: array.ctypes.data for name, array in (arrays | of_table).items()}
        until = min(table.steps_max, first + STEPS_AHEAD)
        words |= {"slots_max": table.slots_max, "slots": slots, "steps_until": until} | self._context.words
        status = self._call(np.array([words[name] for name in WORDS], np.int64).ctypes.data)
        _take_over(table, first, arrays["alive"].tolist())
        return int(status)


def _take_over(table: StepTable, first: int, alive: list[int]) -> None:
    """Bring what Python keeps of the table to where the loop came to."""
    done = table.drawn[first : table.steps_done, : table.slots]
    for slot, drawn in enumerate(done.T.tolist()):
        table.history[slot] += [token for token in drawn if token >= 0]
        if table.pending[slot]:
            table.pending[slot][:] = [int(table.last[slot])] if alive[slot] else []


@functools.cache
def compiled(target: Target) -> Any:
    """The functions `run_ahead` and `largest`, compiled once in a process. Blocks for some tens of milliseconds."""
    module = ir.Module("run_ahead")
    module.triple = llvm.get_default_triple()
    _emit_largest(module, target.lanes)
    _emit_loop(module)
    by_stack = target.architecture == "x86_64" and "windows" not in module.triple
    machine = target_machine(target)
    parsed = llvm.parse_assembly(str(module))
    parsed.link_in(llvm.parse_assembly(SHIM.format(by_value=f"byval([{BATCH_BYTES} x i8]) align 8" if by_stack else "")))
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine


class _Loop(Function):
    """The function under construction, with the words of its argument."""

    def __init__(self, module: ir.Module) -> None:
        super().__init__(module, "run_ahead", [PTR], I64)
        self._words = {
            name: self.load(self.args[0], index, I64 if name in ("slots_max", "slots", "steps_until", "width") else PTR)
            for index, name in enumerate(WORDS)
        }

    def __getitem__(self, name: str) -> Value:
        return self._words[name]

    def bump(self, name: str, slot: Value, by: int) -> Value:
        """Add to an int64 column of a slot; gives the new value."""
        value = self.b.add(self.load(self[name], slot, I64), i64(by))
        self.store(value, self[name], slot)
        return value


def _emit_loop(module: ir.Module) -> None:
    """`run_ahead(words) -> status`."""
    f = _Loop(module)
    b = f.b
    status = f.variable(I32)
    one = f.variable(I64, 1)
    with f.forever() as leave:
        asked = b.or_(f.load_shared(f["control"], STOP), f.load_shared(f["control"], TURN))
        f.leave_if(b.icmp_signed("!=", asked, i64(0)), leave)
        step = f.load(f["control"], STEPS_DONE, I64)
        f.leave_if(b.icmp_signed(">=", step, f["steps_until"]), leave)
        rows = _fill_batch(f)
        f.leave_if(b.icmp_signed("==", rows, i64(0)), leave)
        status.set(f.external("call_decode", I32, [f["decode"], f["context"], f["batch"]]))
        f.leave_if(b.icmp_signed("!=", status.get(), i32(0)), leave)
        _commit_rows(f, step, rows)
        f.store_shared(b.add(step, i64(1)), f["control"], STEPS_DONE)
        descriptor = f.load(f["control"], SIGNAL_FD, I64)
        with b.if_then(b.icmp_signed(">=", descriptor, i64(0))):
            f.external("write", I64, [b.trunc(descriptor, I32), one.address, i64(8)])
    f.done(b.sext(status.get(), I64))


def _fill_batch(f: _Loop) -> Value:
    """A row for each slot that goes on, in the order of places; gives their number."""
    b = f.b
    rows = f.variable(I64)
    with f.loop(i64(0), f["slots"]) as index:
        slot = f.load(f["order"], index, I64)
        with b.if_then(b.icmp_signed("!=", f.load(f["alive"], slot, I64), i64(0))):
            row = rows.get()
            for source, target in (("last", "token"), ("position", "row_position"), ("place", "row_place")):
                f.store(b.trunc(f.load(f[source], slot, I64), I32), f[target], row)
            f.store(constant(I8, 1), f["wanted"], row)
            f.store(slot, f["row_slot"], row)
            rows.add(i64(1))
    f.store(b.trunc(rows.get(), I32), f["batch"], 0)
    return rows.get()


def _commit_rows(f: _Loop, step: Value, rows: Value) -> None:
    """Write the step into the table, and decide who goes on."""
    b = f.b
    first = b.mul(step, f["slots_max"])
    with f.loop(i64(0), f["slots"]) as slot:
        f.store(i32(NOT_DRAWN), f["drawn"], b.add(first, slot))
        f.store(i32(0), f["evaluated"], b.add(first, slot))
    logits = f.external("call_logits", PTR, [f["logits_of"], f["context"]])
    with f.loop(i64(0), rows) as row:
        slot = f.load(f["row_slot"], row, I64)
        values = f.at(logits, b.mul(row, f["width"]), F32)
        token = b.call(f.module.globals["largest"], [values, f["width"]])
        f.store(b.trunc(token, I32), f["drawn"], b.add(first, slot))
        f.store(i32(1), f["evaluated"], b.add(first, slot))
        f.bump("position", slot, 1)
        valid = b.icmp_signed(">=", token, i64(0))
        with b.if_else(valid) as (drawn, failed):
            with drawn:
                f.bump("output_index", slot, 1)
                left = f.bump("remaining", slot, -1)
                goes_on = b.and_(b.icmp_signed(">", left, i64(0)), b.not_(_is_end(f, slot, token)))
                f.store(b.zext(goes_on, I64), f["alive"], slot)
                with b.if_then(goes_on):
                    f.store(token, f["last"], slot)
            with failed:
                f.store(i64(0), f["alive"], slot)


def _is_end(f: _Loop, slot: Value, token: Value) -> Value:
    """Whether the token ends the slot's text."""
    b = f.b
    found = f.variable(I1)
    with f.loop(f.load(f["end_from"], slot, I64), f.load(f["end_from"], b.add(slot, i64(1)), I64)) as index:
        found.set(b.or_(found.get(), b.icmp_signed("==", f.load(f["end_ids"], index, I64), token)))
    return found.get()


def _emit_largest(module: ir.Module, lanes: int) -> None:
    """`largest(values, count) -> index` of the first of the largest, or `INVALID_LOGITS` if that is not finite or one is NaN."""
    f = Function(module, "largest", [PTR, I64], I64)
    values, count = f.args
    b, kind = f.b, vector(F32, lanes)
    whole = b.and_(count, i64(-lanes))
    low = float("-inf")
    best = f.variable(kind, constant(kind, low))
    with f.loop(i64(0), whole, lanes) as index:
        best.set(f.intrinsic("maximum", [kind], [best.get(), f.load_vector(values, index, F32, lanes)]))
    top = f.variable(F32, constant(F32, low))
    for lane in range(lanes):
        top.set(f.intrinsic("maximum", [F32], [top.get(), b.extract_element(best.get(), i32(lane))]))
    with f.loop(whole, count) as index:
        top.set(f.intrinsic("maximum", [F32], [top.get(), f.load(values, index, F32)]))
    size = f.intrinsic("fabs", [F32], [top.get()])
    finite = b.fcmp_ordered("<", size, constant(F32, float("inf")))
    found = f.variable(I64, INVALID_LOGITS)
    with b.if_then(finite):
        at = f.variable(I64)
        every = f.splat(top.get(), lanes)
        with f.forever() as leave:  # whole vectors that do not have it
            f.leave_if(b.icmp_signed(">=", at.get(), whole), leave)
            equal = b.fcmp_ordered("==", f.load_vector(values, at.get(), F32, lanes), every)
            f.leave_if(b.icmp_unsigned("!=", b.bitcast(equal, ir.IntType(lanes)), constant(ir.IntType(lanes), 0)), leave)
            at.add(i64(lanes))
        with f.forever() as leave:
            f.leave_if(b.fcmp_ordered("==", f.load(values, at.get(), F32), top.get()), leave)
            at.add(i64(1))
        found.set(at.get())
    f.done(found.get())

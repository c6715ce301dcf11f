"""The toy's run-ahead loop as LLVM IR: steps over the table until it is stopped, without Python and without the GIL.

It touches only plain arrays, says what it did by raising `steps_done` after the step's results are written, and wakes the Trio loop
by writing to the port's eventfd.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from tripower.runtime.engine import StepTable

_SOURCE = """
declare i64 @write(i32, i8*, i64)
declare i32 @usleep(i32)

@one = private constant i64 1

define i64 @toy_absorb(i64* %tokens, i64 %count, i64 %state) {
entry:
  br label %head
head:
  %at = phi i64 [ 0, %entry ], [ %at_next, %body ]
  %now = phi i64 [ %state, %entry ], [ %next, %body ]
  %more = icmp slt i64 %at, %count
  br i1 %more, label %body, label %leave
body:
  %token_at = getelementptr i64, i64* %tokens, i64 %at
  %token = load i64, i64* %token_at
  %keyed = xor i64 %now, %token
  %scaled = mul i64 %keyed, 6364136223846793005
  %next = add i64 %scaled, 1442695040888963407
  %at_next = add i64 %at, 1
  br label %head
leave:
  ret i64 %now
}

define void @toy_run(i64* %control, i64* %remaining, i64* %last, i32* %drawn, i32* %evaluated,
                     i64* %states, i64* %keys, i64* %stop_at_end, i64* %alive, i64 %slots_max, i32 %microseconds) {
entry:
  %steps_done = getelementptr i64, i64* %control, i64 1
  %steps_max_at = getelementptr i64, i64* %control, i64 2
  %slots_at = getelementptr i64, i64* %control, i64 3
  %fd_at = getelementptr i64, i64* %control, i64 4
  %steps_max = load i64, i64* %steps_max_at
  %slots = load i64, i64* %slots_at
  %fd64 = load i64, i64* %fd_at
  %fd = trunc i64 %fd64 to i32
  br label %step_head

step_head:
  %stop = load atomic i64, i64* %control seq_cst, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %leave, label %step_more
step_more:
  %step = load i64, i64* %steps_done
  %full = icmp sge i64 %step, %steps_max
  br i1 %full, label %leave, label %step_work
step_work:
  %slow = icmp sgt i32 %microseconds, 0
  br i1 %slow, label %sleep, label %rows
sleep:
  %slept = call i32 @usleep(i32 %microseconds)
  br label %rows
rows:
  %base = mul i64 %step, %slots_max
  br label %slot_head

slot_head:
  %slot = phi i64 [ 0, %rows ], [ %slot_next, %slot_end ]
  %busy = phi i64 [ 0, %rows ], [ %busy_next, %slot_end ]
  %more_slots = icmp slt i64 %slot, %slots
  br i1 %more_slots, label %slot_work, label %step_end
slot_work:
  %cell = add i64 %base, %slot
  %drawn_at = getelementptr i32, i32* %drawn, i64 %cell
  %evaluated_at = getelementptr i32, i32* %evaluated, i64 %cell
  %alive_at = getelementptr i64, i64* %alive, i64 %slot
  %is_alive = load i64, i64* %alive_at
  %lives = icmp ne i64 %is_alive, 0
  br i1 %lives, label %evaluate, label %rest
rest:
  store i32 -1, i32* %drawn_at
  store i32 0, i32* %evaluated_at
  br label %slot_end
evaluate:
  %state_at = getelementptr i64, i64* %states, i64 %slot
  %last_at = getelementptr i64, i64* %last, i64 %slot
  %key_at = getelementptr i64, i64* %keys, i64 %slot
  %remaining_at = getelementptr i64, i64* %remaining, i64 %slot
  %state = load i64, i64* %state_at
  %token_in = load i64, i64* %last_at
  %keyed = xor i64 %state, %token_in
  %scaled = mul i64 %keyed, 6364136223846793005
  %state_next = add i64 %scaled, 1442695040888963407
  store i64 %state_next, i64* %state_at
  store i32 1, i32* %evaluated_at
  %left = load i64, i64* %remaining_at
  %may_draw = icmp sgt i64 %left, 0
  br i1 %may_draw, label %draw, label %spent
spent:
  store i32 -1, i32* %drawn_at
  store i64 0, i64* %alive_at
  br label %slot_end
draw:
  %key = load i64, i64* %key_at
  %seeded = xor i64 %state_next, %key
  %mixed = mul i64 %seeded, 6364136223846793005
  %high = lshr i64 %mixed, 33
  %symbol = urem i64 %high, 29
  %is_letter = icmp ult i64 %symbol, 26
  %letter = add i64 %symbol, 97
  %higher = lshr i64 %mixed, 50
  %odds = urem i64 %higher, 8
  %lucky = icmp eq i64 %odds, 0
  %last_symbol = icmp eq i64 %symbol, 28
  %is_end = and i1 %lucky, %last_symbol
  %blank_or_end = select i1 %is_end, i64 256, i64 32
  %token = select i1 %is_letter, i64 %letter, i64 %blank_or_end
  %token32 = trunc i64 %token to i32
  store i32 %token32, i32* %drawn_at
  store i64 %token, i64* %last_at
  %left_next = sub i64 %left, 1
  store i64 %left_next, i64* %remaining_at
  %stops_at = getelementptr i64, i64* %stop_at_end, i64 %slot
  %stops = load i64, i64* %stops_at
  %heeds = icmp ne i64 %stops, 0
  %ended = and i1 %is_end, %heeds
  %used_up = icmp eq i64 %left_next, 0
  %dead = or i1 %ended, %used_up
  %alive_bit = select i1 %dead, i64 0, i64 1
  store i64 %alive_bit, i64* %alive_at
  br label %slot_end
slot_end:
  %worked = phi i64 [ 0, %rest ], [ 1, %spent ], [ 1, %draw ]
  %busy_next = or i64 %busy, %worked
  %slot_next = add i64 %slot, 1
  br label %slot_head

step_end:
  %idle = icmp eq i64 %busy, 0
  br i1 %idle, label %leave, label %publish
publish:
  %done = add i64 %step, 1
  store atomic i64 %done, i64* %steps_done seq_cst, align 8
  %has_fd = icmp sge i32 %fd, 0
  br i1 %has_fd, label %wake, label %step_head
wake:
  %one_at = bitcast i64* @one to i8*
  %written = call i64 @write(i32 %fd, i8* %one_at, i64 8)
  br label %step_head
leave:
  ret void
}
"""

Array = npt.NDArray[Any]


@functools.cache
def _compiled() -> Any:
    """Compile once in this process. Blocks for some milliseconds the first time; the code lives as long as what is returned."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_SOURCE)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


@functools.cache
def native_loop() -> Callable[[StepTable, Array, Array, Array, Array, int], None]:
    """The run-ahead loop, compiled."""
    pointers = [ctypes.c_void_p] * 9
    address = _compiled().get_function_address("toy_run")
    entry = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, ctypes.c_int32)(address)

    def run(table: StepTable, states: Array, keys: Array, stop_at_end: Array, alive: Array, microseconds: int) -> None:
        arrays = (table.control, table.remaining, table.last, table.drawn, table.evaluated, states, keys, stop_at_end, alive)
        assert all(each.flags.c_contiguous for each in arrays)
        entry(*(each.ctypes.data for each in arrays), table.slots_max, microseconds)

    return run


@functools.cache
def native_absorb() -> Callable[[int, Sequence[int]], int]:
    """The state after many tokens, for prompts. Equal to `engine.absorb_all`."""
    address = _compiled().get_function_address("toy_absorb")
    entry = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64)(address)

    def absorb(state: int, tokens: Sequence[int]) -> int:
        numbers = array("q", tokens)
        return int(entry(numbers.buffer_info()[0], len(numbers), state))

    return absorb

"""The end of a step and the beginning of the next one, in native code: commit, say so, look for a stop, choose the rows.

A *slot* is a sequence that takes part in a job. Its tokens lie in a buffer of its own, in order: `next` is the first that is not
evaluated, `end` is behind the last that is known. A drawn token is appended, so decoding is the case of one pending token and a
prompt the case of many.

A slot that asks for it (`all_rows`) gets logits at all of its rows of a step, not only at the one it draws from: its *rows of logits*
begin at `first_logits`, one for each of its rows. Which of all rows of logits a slot draws from is `draw_at`, or -1; `row_draw` says it
from the row's side. So a step of several rows for one slot can be read row by row, whoever else is in it.

Behind its last token a slot may have guesses (`drafted` of them, for one step). Their rows are due like a first row. `DRAWS_ALL` draws at
every row as if the tokens before it had come one by one; with `DRAWS_LATER` Python calls the draw for row after row, because a mask or
penalties depend on what was drawn before. Either way Python finds out how far the guesses were right, and moves such a slot on.

Rows are chosen as `runtime.engine.step_loop.plan_rows` does: one for everybody who has something pending, and what is left of the
budget to prompts in slot order. While somebody decodes, the budget is a smaller one, counted in the cost of a decoding row: a row of
a prompt costs more the further back it looks, so a long prompt takes fewer of them towards its end and running streams keep
their pace.
"""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F64, I8, I32, I64, PTR, Function, Kernel, Value, Variable, constant, i32, i64
from tripower.backends.picolm.native.kernels.sampler.settings import emit_append_history
from tripower.runtime.engine.step_table import NOT_DRAWN, SIGNAL_FD, SLOTS, STEPS_DONE, STEPS_MAX, STOP, TURN

WORDS = (
    "control", "drawn", "evaluated", "slots_max",  # of the step table
    "ends", "tokens", "next", "end", "remaining", "output_index", "alive", "position", "step_rows",  # by slot
    "all_rows", "first_logits", "draw_at", "drafted", "draws",  # by slot
    "row_token", "row_position", "row_slot", "drawn_row", "row_draw", "token_out", "item_row", "item_rows",  # of the step
    "counts", "shared", "halt", "rows_max", "drawn_max", "mixed_rows", "row_cost", "item_rows_max", "reporting", "experts_used",
    "sampling",
)  # fmt: skip
"""The words of the boundary's arguments, int64, by name: addresses, sizes, and `row_cost` as the bits of a float64."""

ROWS, DRAWN, ITEMS, ONE, PAIRS, REPORTED = range(6)
CLASSES_FIRST = 8
"""`counts[ROWS]`, …; `counts[DRAWN]` are rows of logits, `counts[REPORTED]` the same if a job reports log probabilities, else 0;
`counts[ONE]` is 1, `counts[PAIRS]` rows times the experts of each. From here on: rows if they fall into class 0, else 0; the same for class 1, …; then the
drawn rows likewise."""
CLASS_MAX = (1, 2, 4, 8, 16, 1 << 30)
"""Largest number of rows of each class: a linear layer has a tile of its own for each of them."""
COUNTS = CLASSES_FIRST + 2 * len(CLASS_MAX)

DRAWS_LAST, DRAWS_ALL, DRAWS_LATER = range(3)
"""`draws` of a slot: at the row that completes what is pending, at each of its rows, or at none in this step."""

DECIDING = (ROWS, DRAWN, ITEMS)
"""As long as these stay, the tiles of all stages do."""


def _word(f: Function, words: Value, name: str, kind: ir.Type = PTR) -> Value:
    return f.load(words, WORDS.index(name), kind)


def emit_boundary(module: ir.Module) -> None:
    """Emit `plan_step(words) -> rows` and the kernel `boundary`, which needs `prepare` of the executor."""
    _emit_add_rows(module)
    _emit_plan(module)
    _emit_commit(module)


def emit_boundary_kernel(module: ir.Module) -> None:
    """Emit the kernel `boundary`: commit the step, and plan the next one or halt."""
    k = Kernel(module, "boundary")
    b, words = k.b, k.words
    halt, control = _word(k, words, "halt"), _word(k, words, "control")
    b.call(module.globals["commit_step"], [words])
    step = k.load(control, STEPS_DONE, I64)
    asked = b.or_(k.load_shared(control, STOP), k.load_shared(control, TURN))
    ended = b.or_(b.icmp_signed("!=", asked, i64(0)), b.icmp_signed(">=", step, k.load(control, STEPS_MAX, I64)))
    with b.if_else(ended) as (leave, go_on):
        with leave:
            k.store_shared(i64(1), halt, 0)
        with go_on:
            before = [k.load(_word(k, words, "counts"), which, I64) for which in DECIDING]
            rows = b.call(module.globals["plan_step"], [words])
            with b.if_then(b.icmp_signed("==", rows, i64(0))):
                k.store_shared(i64(1), halt, 0)
            after = [k.load(_word(k, words, "counts"), which, I64) for which in DECIDING]
            changed = [b.icmp_signed("!=", old, new) for old, new in zip(before, after, strict=True)]
            with b.if_then(b.or_(b.or_(changed[0], changed[1]), changed[2])):
                b.call(module.globals["prepare"], [_word(k, words, "shared")])
    k.done()


def _emit_commit(module: ir.Module) -> None:
    """Record what the step gave, move every slot on, raise `steps_done` and write to the port's descriptor."""
    f = Function(module, "commit_step", [PTR])
    b, words = f.b, f.args[0]
    control, slots_max = _word(f, words, "control"), _word(f, words, "slots_max", I64)
    step = f.load(control, STEPS_DONE, I64)
    with f.loop(i64(0), f.load(control, SLOTS, I64)) as slot:
        rows = f.load(_word(f, words, "step_rows"), slot, I64)
        cell = b.add(b.mul(step, slots_max), slot)
        f.store(b.trunc(rows, I32), _word(f, words, "evaluated"), cell)
        f.store(i32(NOT_DRAWN), _word(f, words, "drawn"), cell)
        with b.if_then(b.icmp_signed(">", rows, i64(0))):
            _move_on(f, slot, rows, cell)
    f.store_shared(b.add(step, i64(1)), control, STEPS_DONE)
    descriptor = f.load(control, SIGNAL_FD, I64)
    one = f.variable(I64, 1)
    with b.if_then(b.icmp_signed(">=", descriptor, i64(0))):
        f.external("write", I64, [b.trunc(descriptor, I32), one.address, i64(8)])
    f.done()


def _move_on(f: Function, slot: Value, rows: Value, cell: Value) -> None:
    """One slot that had rows in the step."""
    b, words = f.b, f.args[0]
    following, ends = _word(f, words, "next"), _word(f, words, "end")
    first = b.add(f.load(following, slot, I64), rows)
    f.store(first, following, slot)
    position = _word(f, words, "position")
    f.store(b.add(f.load(position, slot, I64), rows), position, slot)
    known = f.load(ends, slot, I64)
    left = f.load(_word(f, words, "remaining"), slot, I64)
    plain = b.icmp_signed("==", f.load(_word(f, words, "draws"), slot, I64), i64(DRAWS_LAST))
    complete = b.icmp_signed("==", first, known)
    with b.if_then(b.and_(plain, complete)), b.if_else(b.icmp_signed(">", left, i64(0))) as (draw, spent):
        with draw:
            _take_draw(f, slot, known, left, cell)
        with spent:
            f.store(i64(0), _word(f, words, "alive"), slot)


def _take_draw(f: Function, slot: Value, known: Value, left: Value, cell: Value) -> None:
    b, words = f.b, f.args[0]
    token = f.load(_word(f, words, "token_out"), f.load(_word(f, words, "draw_at"), slot, I64), I32)
    f.store(token, _word(f, words, "drawn"), cell)
    f.store(b.sub(left, i64(1)), _word(f, words, "remaining"), slot)
    output_index = _word(f, words, "output_index")
    f.store(b.add(f.load(output_index, slot, I64), i64(1)), output_index, slot)
    valid = b.icmp_signed(">=", token, i32(0))
    lives = f.variable(I64)
    with b.if_then(valid):
        f.store(token, f.load(_word(f, words, "tokens"), slot, PTR), known)
        emit_append_history(f, _word(f, words, "sampling"), slot, token)
        f.store(b.add(known, i64(1)), _word(f, words, "end"), slot)
        is_end = f.load(f.load(_word(f, words, "ends"), slot, PTR), b.sext(token, I64), I8)
        goes_on = b.and_(b.icmp_signed("==", is_end, constant(I8, 0)), b.icmp_signed(">", left, i64(1)))
        lives.set(b.zext(goes_on, I64))
    f.store(lives.get(), _word(f, words, "alive"), slot)


def _emit_plan(module: ir.Module) -> None:
    """Choose the rows of the next step; returns their number."""
    f = Function(module, "plan_step", [PTR], I64)
    b, words = f.b, f.args[0]
    slots = f.load(_word(f, words, "control"), SLOTS, I64)
    counts = _word(f, words, "counts")
    for which in (ROWS, DRAWN, ITEMS):
        f.store(i64(0), counts, which)
    waiting, decoding = f.variable(I64), f.variable(I64)
    with f.loop(i64(0), slots) as slot:
        pending, drafted = _pending(f, slot), f.load(_word(f, words, "drafted"), slot, I64)
        waiting.add(b.add(b.zext(b.icmp_signed(">", pending, i64(0)), I64), drafted))
        decoding.add(b.zext(b.icmp_signed("==", b.sub(pending, drafted), i64(1)), I64))
    rows_max = _word(f, words, "rows_max", I64)
    mixed = b.icmp_signed(">", decoding.get(), i64(0))
    budget = b.select(mixed, _word(f, words, "mixed_rows", I64), b.sub(rows_max, waiting.get()))
    left = f.variable(F64, b.sitofp(budget, F64))
    room = f.variable(I64, b.sub(rows_max, waiting.get()))
    logits_room = f.variable(I64, b.sub(_word(f, words, "drawn_max", I64), waiting.get()))
    cost_of_looking_back = f.variable(F64, constant(F64, 0.0))
    with b.if_then(mixed):
        cost_of_looking_back.set(_word(f, words, "row_cost", F64))
    with f.loop(i64(0), slots) as slot:
        pending, drafted = _pending(f, slot), f.load(_word(f, words, "drafted"), slot, I64)
        rows = f.variable(I64)
        f.store(i64(-1), _word(f, words, "draw_at"), slot)
        with b.if_then(b.icmp_signed(">", pending, i64(0))):
            due = b.sub(pending, drafted)
            extra = _extra_rows(f, slot, due, left, (room, logits_room), cost_of_looking_back.get())
            rows.set(b.add(b.add(extra, drafted), i64(1)))
            b.call(module.globals["add_rows"], [words, slot, rows.get()])
        f.store(rows.get(), _word(f, words, "step_rows"), slot)
    _classify(f, counts)
    f.store(b.mul(f.load(counts, ROWS, I64), _word(f, words, "experts_used", I64)), counts, PAIRS)
    f.store(b.mul(f.load(counts, DRAWN, I64), _word(f, words, "reporting", I64)), counts, REPORTED)
    f.done(f.load(counts, ROWS, I64))


def _pending(f: Function, slot: Value) -> Value:
    b, words = f.b, f.args[0]
    pending = b.sub(f.load(_word(f, words, "end"), slot, I64), f.load(_word(f, words, "next"), slot, I64))
    return b.mul(pending, f.load(_word(f, words, "alive"), slot, I64))


def _extra_rows(
    f: Function, slot: Value, pending: Value, left: Variable, rooms: tuple[Variable, Variable], cost: Value
) -> Value:
    """Rows beyond the first that a slot gets, and what they take from the budget, from the room for rows and from that for logits."""
    b, words = f.b, f.args[0]
    room, logits_room = rooms
    all_rows = f.load(_word(f, words, "all_rows"), slot, I64)
    position = b.sitofp(f.load(_word(f, words, "position"), slot, I64), F64)
    price = f.fma(position, cost, constant(F64, 1.0))
    affordable = b.fptosi(b.fdiv(left.get(), price), I64)
    extra = b.sub(pending, i64(1))
    for bound in (affordable, room.get(), b.select(b.icmp_signed("!=", all_rows, i64(0)), logits_room.get(), room.get())):
        extra = b.select(b.icmp_signed("<", bound, extra), bound, extra)
    extra = b.select(b.icmp_signed("<", extra, i64(0)), i64(0), extra)
    left.set(b.fsub(left.get(), b.fmul(price, b.sitofp(extra, F64))))
    room.set(b.sub(room.get(), extra))
    logits_room.set(b.sub(logits_room.get(), b.mul(extra, all_rows)))
    return extra


def _emit_add_rows(module: ir.Module) -> None:
    """`add_rows(words, slot, rows)`: put the slot's next rows, its draw if one is due, and its attention items into the step."""
    f = Function(module, "add_rows", [PTR, I64, I64])
    b, (words, slot, rows) = f.b, f.args
    counts = _word(f, words, "counts")
    first = f.load(counts, ROWS, I64)
    following = f.load(_word(f, words, "next"), slot, I64)
    position = f.load(_word(f, words, "position"), slot, I64)
    tokens = f.load(_word(f, words, "tokens"), slot, PTR)
    draws = f.load(_word(f, words, "draws"), slot, I64)
    everywhere = b.icmp_signed("==", draws, i64(DRAWS_ALL))
    all_rows = b.icmp_signed("!=", f.load(_word(f, words, "all_rows"), slot, I64), i64(0))
    f.store(f.load(counts, DRAWN, I64), _word(f, words, "first_logits"), slot)
    with f.loop(i64(0), rows) as index:
        row = b.add(first, index)
        f.store(f.load(tokens, b.add(following, index), I32), _word(f, words, "row_token"), row)
        f.store(b.trunc(b.add(position, index), I32), _word(f, words, "row_position"), row)
        f.store(b.trunc(slot, I32), _word(f, words, "row_slot"), row)
        with b.if_then(all_rows):
            _add_logits(f, counts, row, b.select(everywhere, b.trunc(index, I32), i32(NOT_DRAWN)))
    f.store(b.add(first, rows), counts, ROWS)
    complete = b.icmp_signed("==", b.add(following, rows), f.load(_word(f, words, "end"), slot, I64))
    wanted = b.icmp_signed(">", f.load(_word(f, words, "remaining"), slot, I64), i64(0))
    with b.if_then(b.and_(complete, wanted)):
        with b.if_then(b.not_(all_rows)):
            _add_logits(f, counts, b.sub(b.add(first, rows), i64(1)), i32(NOT_DRAWN))
        last = b.sub(f.load(counts, DRAWN, I64), i64(1))
        with b.if_then(b.icmp_signed("==", draws, i64(DRAWS_LAST))):
            f.store(i32(0), _word(f, words, "row_draw"), last)
        f.store(last, _word(f, words, "draw_at"), slot)
    size = _word(f, words, "item_rows_max", I64)
    with f.loop(i64(0), b.sdiv(b.sub(b.add(rows, size), i64(1)), size)) as item:
        at, done = f.load(counts, ITEMS, I64), b.mul(item, size)
        rest = b.sub(rows, done)
        f.store(b.trunc(b.add(first, done), I32), _word(f, words, "item_row"), at)
        f.store(b.trunc(b.select(b.icmp_signed("<", rest, size), rest, size), I32), _word(f, words, "item_rows"), at)
        f.store(b.add(at, i64(1)), counts, ITEMS)
    f.done()


def _add_logits(f: Function, counts: Value, row: Value, ahead: Value) -> None:
    """One more row of logits, from which the slot's token `ahead` is drawn, or none so far."""
    b, words = f.b, f.args[0]
    drawn = f.load(counts, DRAWN, I64)
    f.store(b.trunc(row, I32), _word(f, words, "drawn_row"), drawn)
    f.store(ahead, _word(f, words, "row_draw"), drawn)
    f.store(b.add(drawn, i64(1)), counts, DRAWN)


def _classify(f: Function, counts: Value) -> None:
    """Copy the rows to the count of their class, 0 to the others; the same for the drawn rows."""
    b = f.b
    for which, offset in ((ROWS, 0), (DRAWN, len(CLASS_MAX))):
        count = f.load(counts, which, I64)
        smallest = 0
        for index, largest in enumerate(CLASS_MAX):
            inside = b.and_(b.icmp_signed(">", count, i64(smallest)), b.icmp_signed("<=", count, i64(largest)))
            f.store(b.select(inside, count, i64(0)), counts, CLASSES_FIRST + offset + index)
            smallest = largest

"""How threads share a step: stages of tiles, handed out by one atomic word, without a lock and without Python.

A *program* is a list of stages that runs round and round; a stage is a list of parts, a part a kernel over a number of tiles. The
number of tiles follows from counts that the last stage of the round, the boundary, decides for the next one. Threads do not meet: a
stage ends when all its tiles are done, not when all threads have arrived, so a thread that the system has taken away delays nobody
but the tile it holds. Who finishes a stage's last tile opens the next stage. Waiting threads spin briefly and then yield.

The word `ticket` holds (stage, tiles of the stage, next tile) in 16, 24 and 24 bits, so that one fetch-and-add claims a tile of
whatever stage is open at that instant; a thread that slept through a stage, or through a whole job, can only ever claim a tile that
is due. Between jobs the workers are parked in a read of their own descriptor.

Tiles own their outputs, so neither the number of threads nor the order of tiles can change a bit.
"""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import I32, I64, PTR, VOID, Function, Value, i64

TICKET, DONE, HALT, QUIT, STAGES, PARTS, STAGE_COUNT, PLAN, BOUNDARY_WORDS, WORKERS, WORKER_FDS = range(0, 88, 8)
"""Words of the shared block, int64, each on a cache line of its own."""
SHARED_WORDS = 96
STAGE_WORDS = 3
STAGE_FIRST_PART, STAGE_PARTS, STAGE_TILES = range(STAGE_WORDS)
PART_WORDS = 6
PART_KERNEL, PART_ARGUMENTS, PART_COLUMNS, PART_COUNT, PART_ROWS, PART_TILES = range(PART_WORDS)
"""Address of the kernel, of its words; tiles of one block of rows, address of the count of rows, rows of a block; tiles now."""

TILE_BITS = 24
TILES_MAX = (1 << TILE_BITS) - 1
HALTED = 0xFFFF
"""The stage of a ticket when no job runs."""
STAGES_MAX = HALTED - 1
SPINS = 2_000


def emit_executor(module: ir.Module, architecture: str) -> None:
    """Emit `prepare(shared)`, `work(shared, scratch)`, `run(shared, scratch)` and `park(shared, scratch, descriptor)`.

    `run` is one job on the calling thread: it plans the first step, wakes the workers and works until the boundary halts. `park` is
    a worker's life; it returns when QUIT is set and the descriptor was written.
    """
    _emit_prepare(module)
    _emit_work(module, architecture)
    _emit_run(module)
    _emit_park(module)


def _function(module: ir.Module, name: str) -> ir.Function:
    return module.globals[name]


def _emit_prepare(module: ir.Module) -> None:
    """Count every part's and every stage's tiles from the counts as they are now."""
    f = Function(module, "prepare", [PTR])
    b, shared = f.b, f.args[0]
    stages, parts = f.load(shared, STAGES, PTR), f.load(shared, PARTS, PTR)
    with f.loop(i64(0), f.load(shared, STAGE_COUNT, I64)) as stage:
        record = f.at(stages, b.mul(stage, i64(STAGE_WORDS)), I64)
        first = f.load(record, STAGE_FIRST_PART, I64)
        total = f.variable(I64)
        with f.loop(first, b.add(first, f.load(record, STAGE_PARTS, I64))) as part:
            at = f.at(parts, b.mul(part, i64(PART_WORDS)), I64)
            rows = b.load(f.load(at, PART_COUNT, PTR), typ=I64)
            size = f.load(at, PART_ROWS, I64)
            blocks = b.sdiv(b.sub(b.add(rows, size), i64(1)), size)
            tiles = b.mul(blocks, f.load(at, PART_COLUMNS, I64))
            f.store(tiles, at, PART_TILES)
            total.add(tiles)
        f.store(total.get(), record, STAGE_TILES)
    f.done()


def _emit_work(module: ir.Module, architecture: str) -> None:
    f = Function(module, "work", [PTR, PTR])
    b, (shared, scratch) = f.b, f.args
    ticket_at = f.at(shared, TICKET, I64)
    spins = f.variable(I64)
    with f.forever() as leave:
        head = b.block
        seen = f.load_shared(shared, TICKET)
        f.leave_if(_is_halted(f, seen), leave)
        nothing_to_do = b.icmp_unsigned(">=", _tile(f, seen), _tiles(f, seen))
        with b.if_then(nothing_to_do):
            _wait_a_moment(f, spins, architecture)
        f.again_if(nothing_to_do, head)
        spins.set(i64(0))
        claimed = b.atomic_rmw("add", ticket_at, i64(1), "acq_rel")
        f.leave_if(_is_halted(f, claimed), leave)
        f.again_if(b.icmp_unsigned(">=", _tile(f, claimed), _tiles(f, claimed)), head)
        stage = b.lshr(claimed, i64(2 * TILE_BITS))
        _run_tile(f, stage, _tile(f, claimed), scratch)
        finished = b.add(b.atomic_rmw("add", f.at(shared, DONE, I64), i64(1), "acq_rel"), i64(1))
        with b.if_then(b.icmp_unsigned("==", finished, _tiles(f, claimed))):
            f.store_shared(i64(0), shared, DONE)
            f.store_shared(_next_ticket(f, stage), shared, TICKET)
    f.done()


def _run_tile(f: Function, stage: Value, tile: Value, scratch: Value) -> None:
    """Find the part that tile number `tile` of a stage belongs to, and call its kernel."""
    b, shared = f.b, f.args[0]
    record = f.at(f.load(shared, STAGES, PTR), b.mul(stage, i64(STAGE_WORDS)), I64)
    first = f.at(f.load(shared, PARTS, PTR), b.mul(f.load(record, STAGE_FIRST_PART, I64), i64(PART_WORDS)), I64)
    rest, at = f.variable(I64, tile), f.variable(PTR, first)
    with f.forever() as found:
        tiles = f.load(at.get(), PART_TILES, I64)
        f.leave_if(b.icmp_signed("<", rest.get(), tiles), found)
        rest.set(b.sub(rest.get(), tiles))
        at.set(f.at(at.get(), PART_WORDS, I64))
    signature = ir.FunctionType(VOID, [PTR, I64, PTR])
    kernel = b.inttoptr(f.load(at.get(), PART_KERNEL, I64), signature.as_pointer())
    b.call(kernel, [f.load(at.get(), PART_ARGUMENTS, PTR), rest.get(), scratch])


def _next_ticket(f: Function, stage: Value) -> Value:
    """The ticket of the next stage that has tiles, or the halted one. The boundary, the last stage, always has one."""
    b, shared = f.b, f.args[0]
    stages, count = f.load(shared, STAGES, PTR), f.load(shared, STAGE_COUNT, I64)
    following, tiles = f.variable(I64, stage), f.variable(I64)
    with f.forever() as found:
        after = b.add(following.get(), i64(1))
        following.set(b.select(b.icmp_signed("==", after, count), i64(0), after))
        tiles.set(f.load(f.at(stages, b.mul(following.get(), i64(STAGE_WORDS)), I64), STAGE_TILES, I64))
        f.leave_if(b.icmp_signed(">", tiles.get(), i64(0)), found)
    ticket = b.or_(b.shl(following.get(), i64(2 * TILE_BITS)), b.shl(tiles.get(), i64(TILE_BITS)))
    halt = f.load_shared(shared, HALT)
    return b.select(b.icmp_signed("!=", halt, i64(0)), _halted_ticket(), ticket)


def _halted_ticket() -> Value:
    return i64(HALTED << (2 * TILE_BITS))


def _is_halted(f: Function, ticket: Value) -> Value:
    return f.b.icmp_unsigned("==", f.b.lshr(ticket, i64(2 * TILE_BITS)), i64(HALTED))


def _tiles(f: Function, ticket: Value) -> Value:
    return f.b.and_(f.b.lshr(ticket, i64(TILE_BITS)), i64(TILES_MAX))


def _tile(f: Function, ticket: Value) -> Value:
    return f.b.and_(ticket, i64(TILES_MAX))


def _wait_a_moment(f: Function, spins: Value, architecture: str) -> None:
    b = f.b
    spins.add(i64(1))
    with b.if_else(b.icmp_signed("<", spins.get(), i64(SPINS))) as (spin, give_way):
        with spin:
            if architecture == "x86_64":
                pause = f.module.globals.get("llvm.x86.sse2.pause")
                b.call(pause or ir.Function(f.module, ir.FunctionType(VOID, []), "llvm.x86.sse2.pause"), [])
        with give_way:
            f.external("sched_yield", I32, [])


def _emit_run(module: ir.Module) -> None:
    f = Function(module, "run", [PTR, PTR])
    b, (shared, scratch) = f.b, f.args
    words = f.load(shared, BOUNDARY_WORDS, PTR)
    going = b.call(_function(module, "plan_step"), [words])
    with b.if_then(b.icmp_signed("!=", going, i64(0))):
        b.call(_function(module, "prepare"), [shared])
        f.store_shared(i64(0), shared, DONE)
        f.store_shared(i64(0), shared, HALT)
        first = _next_ticket(f, b.sub(f.load(shared, STAGE_COUNT, I64), i64(1)))
        f.store_shared(first, shared, TICKET)
        _wake(f)
        b.call(_function(module, "work"), [shared, scratch])
    f.done()


def _wake(f: Function) -> None:
    """Write to every worker's descriptor. A full pipe is a worker that has wake-ups enough."""
    b, shared = f.b, f.args[0]
    one = f.variable(I64, 1)
    descriptors = f.load(shared, WORKER_FDS, PTR)
    with f.loop(i64(0), f.load(shared, WORKERS, I64)) as worker:
        descriptor = b.trunc(f.load(descriptors, worker, I64), I32)
        f.external("write", I64, [descriptor, one.address, i64(8)])


def _emit_park(module: ir.Module) -> None:
    f = Function(module, "park", [PTR, PTR, I32])
    b, (shared, scratch, descriptor) = f.b, f.args
    seen = f.variable(I64)
    with f.forever() as leave:
        f.external("read", I64, [descriptor, seen.address, i64(8)])
        quit_now = f.load_shared(shared, QUIT)
        f.leave_if(b.icmp_signed("!=", quit_now, i64(0)), leave)
        b.call(_function(module, "work"), [shared, scratch])
    f.done()

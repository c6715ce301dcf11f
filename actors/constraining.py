"""The automaton that keeps an answer to its format, made beside the loop."""

from __future__ import annotations

import trio

from tripower.runtime.engine import Constraint, OutputFormat, TextLayer


async def new_constraint(
    output: OutputFormat | None, text: TextLayer | None, vocabulary_size: int, param: str = "response_format"
) -> Constraint | None:
    """One for one sequence; None where nothing is asked for. Blocks while a worker thread compiles it.

    Raises `InvalidRequest` for what cannot be enforced, naming `param` and the place within it.
    """
    if output is None or text is None:
        return None
    from tripower.backends.grammar import compile_constraint  # what nobody asks for is not imported

    return await trio.to_thread.run_sync(compile_constraint, output, text, vocabulary_size, param, abandon_on_cancel=True)

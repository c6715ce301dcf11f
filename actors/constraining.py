"""The automaton that keeps an answer to its format, made beside the loop."""

from __future__ import annotations

import trio

from tripower.runtime.engine import Constraint, OutputFormat, TextLayer
from tripower.runtime.engine.constraint import ExplainedConstraint
from tripower.runtime.kernel import DeviceFailed, InvalidRequest, TripowerError


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


def no_token_error(constraint: Constraint | None) -> TripowerError:
    """The end of an answer for which no token could be drawn: the format's fault where it allows none, else the device's.

    Both engines refuse logits that are not finite before they look at a mask, so an unexplained constraint has the fault as well.
    """
    if constraint is None or (isinstance(constraint, ExplainedConstraint) and not constraint.exhausted):
        return DeviceFailed("the model gave logits that are not finite", code="invalid_logits")
    why, param = "it allows no token", None
    if isinstance(constraint, ExplainedConstraint):
        why, param = constraint.exhausted, constraint.param
    return InvalidRequest(
        f"the answer cannot go on in its format: {why}; make the format smaller or less ambiguous",
        code="format_exhausted",
        param=param,
    )

"""The Jinja2 environment in which chat templates run.

On top of Jinja2's immutable sandbox, which keeps templates away from the interpreter, the parsed template is rewritten so that
whatever can grow passes a counter: loops, `~`, list and dictionary displays, slices. Operators, calls, filters and joined buffers
are intercepted through the environment. Names with a space in them cannot be written in a template, so the rewriting's own
filters are out of its reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import BuiltinMethodType
from typing import Any, ClassVar

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tripower.backends.text import template_filters
from tripower.backends.text.template_budget import RANGE_MAX, BudgetExceeded, admit, counted, current, text_of

ITERATE, ADMIT, CONCATENATE = "budget iterate", "budget admit", "budget concatenate"


class TemplateRefusal(Exception):
    """The template called `raise_exception`: its own reason."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Use `chat_environment()`; rendering needs a budget in `template_budget.current`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing of a template runs before its budget exists
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        template_filters.install(self)
        self.filters |= {ITERATE: counted, ADMIT: admit, CONCATENATE: template_filters.concatenate}
        self.globals.clear()
        self.globals |= {"namespace": Namespace, "range": bounded_range, "raise_exception": raise_exception}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins what a macro or a captured block has written."""
        return template_filters.concatenate(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counting().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in template_filters.STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            return template_filters.percent(left, right)
        template_filters.check_operator(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        return value if isinstance(value, str) else admit(value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def checked(*args: Any, **options: Any) -> str:
            template_filters.check_format(value.__self__, args, options)
            return inner(*args, **options)

        return checked

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        if isinstance(function, LoopContext):  # a recursive loop descends
            args = (counted(args[0]), *args[1:])
        elif isinstance(function, BuiltinMethodType) and isinstance(function.__self__, str):
            if function.__name__ == "join":
                return template_filters.join(args[0], function.__self__)
            template_filters.check_string_method(function.__self__, function.__name__, args)
        budget = current.get()
        budget.enter()
        try:
            return admit(super().call(context, function, *args, **options))
        finally:
            budget.leave()


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is rendered as it is."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]  # the base leaves it open

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Puts a counter around everything that can grow."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, ITERATE)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCATENATE)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in node.items) else _filtered(node, ADMIT)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else _filtered(node, ADMIT)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, ADMIT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, ADMIT) if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _finalize(value: Any) -> Any:
    """What `{{ … }}` writes: a container only if its text fits."""
    return text_of(value)


def bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > RANGE_MAX:
        raise BudgetExceeded(f"a range of more than {RANGE_MAX}")
    return numbers


def raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message)[:500])


@cache
def chat_environment() -> ChatEnvironment:
    """One environment for all templates: it has no state of its own."""
    return ChatEnvironment()

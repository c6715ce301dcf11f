"""A line of Python before it runs: is it complete, and where does it ask whether it may go on?

Nothing asynchronous ends a loop that never awaits: an exception put into a running thread may hit Trio's own code as well. So the loop
asks by itself. Each loop, function, lambda and comprehension of a line gets a call of `CHECK` at its head, which raises when the time is
over. The call stands outside of whatever the body catches, so a loop with `except BaseException` inside ends like any other.
"""

from __future__ import annotations

import ast
import codeop
from types import CodeType

CHECK, ANSWER = "__tripower_check__", "__tripower_answer__"
"""Functions that a compiled line expects among its builtins: the first takes nothing and returns true, the second takes the value of a last expression."""
SOURCE_CHARACTERS_MAX = 16 * 1024
"""Of one line, continuation lines included: compiling more would hold the loop."""


def is_incomplete(source: str, *, typed: bool) -> bool:
    """Whether more lines must follow: a bracket, a string or a block is open. A block that is being `typed` ends with an empty line."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        if compiler(source, "<py>", "exec") is None:
            return True
        return typed and _ends_in_a_block(source)
    except Exception:  # noqa: BLE001 - it is wrong rather than incomplete, and compiling it says how
        return False


def _ends_in_a_block(source: str) -> bool:
    """Whether the last statement is a block to which another line could be added."""
    tree = compile(source, "<py>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    return hasattr(last, "body") and "\n" in source and bool(source.rpartition("\n")[2].strip())


def compile_line(source: str, name: str) -> CodeType:
    """The code of a line, whose last expression is given to `ANSWER`. `name` stands in its tracebacks. Raises what `compile` raises."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, name, "exec", flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        last.value = ast.copy_location(_call(ANSWER, last.value), last.value)
    checked = ast.fix_missing_locations(_Checks().visit(tree))
    code: CodeType = compile(checked, name, "exec", flags=flags, dont_inherit=True)
    return code


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


class _Checks(ast.NodeTransformer):
    """Puts the checks in."""

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call(CHECK)))
        return node

    visit_While = visit_For = visit_AsyncFor = _loop

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        described = ast.get_docstring(node, clean=False) is not None
        self.generic_visit(node)
        node.body.insert(int(described), ast.Expr(_call(CHECK)))
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = ast.BoolOp(ast.And(), [_call(CHECK), node.body])
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs.insert(0, _call(CHECK))
        return node

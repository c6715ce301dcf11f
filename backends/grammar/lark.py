"""Grammars in llguidance's dialect of Lark, and what of it the rest of tripower builds on.

A grammar begins at the rule `start`. Names in lower case are rules, names in upper case and `/…/` are terminals: regular expressions,
matched greedily as one lexeme. What was tried and works, beside the usual `|`, `?`, `*`, `+`, `{2,5}` and brackets:

| written | means |
| --- | --- |
| `"text"`, `"text"i` | the text, the second in either case; with JSON's escapes, so `json.dumps(text)` writes one |
| `<\\|im_start\\|>`, `<tool_call>` | the control token with this text, outside of quotes; an unknown one is refused |
| `<[151657]>`, `<[5-7]>`, `<[5,9]>`, `<[^5]>`, `<[*]>` | a token by its id, one of several, none of them, any |
| `%json {"type": "object"}` | JSON by a schema, up to the closing brace; see `json_schema_rule` |
| `%regex {"substring_words": "a b"}` | a stretch of the given text |
| `rule[lazy]: /a+/`, `[suffix="…"]`, `[stop="…"]` | the shortest match; text up to a suffix or a stop |
| `rule[max_tokens=9]: /.*/` | no more tokens than this |
| `/a+/ & /.{3}/`, `~/a+/` | in a terminal: both, not |
| `%ignore /\\s+/` | may stand between lexemes |

A text that merely looks like a control token (`"<tool_call>"` in quotes) is ordinary characters: the token is not allowed for it. A token
that is named by its text must be one whose piece is empty, as control tokens are; added tokens that stand for visible text are written
in quotes. End tokens need no place in a grammar: they are allowed where it may end. An option line `%llguidance {…}` is kept, except
that `no_forcing` is always on: see `free`. Look-around and back references do not exist in any of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from tripower.backends.grammar import keywords
from tripower.backends.grammar.limits import GRAMMAR_LEVELS_MAX, RULES_MAX, check_bytes
from tripower.backends.grammar.schema import read_schema
from tripower.backends.grammar.shape import check_shape
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ESCAPES = 'nrbtf\\"'
"""Letters of the escapes in a string. Without `u` every text has one spelling, so no key can be another one in disguise."""
JSON_STYLE: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": ESCAPES,
}
"""How JSON is written: as Python's `json.dumps` does it, one space behind commas and colons and none elsewhere. Models know this form
well, and one that may choose its blanks can go on choosing blanks."""

_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_]\w*(?:\[[^\]\n]*\])?(?:\.\d+)?[ \t]*(?::|::=)", re.MULTILINE)
_EMBEDDED = re.compile(r"%json\s*(?=\{)")
_OPTIONS = re.compile(r"^%llguidance[ \t]*", re.MULTILINE)
_OPTIONS_LINE = re.compile(r"^%llguidance[^\n]*$", re.MULTILINE)
_LITERAL = re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|/(?:\\.|[^/\\\n])*/")
_BRACKET = re.compile(r"[()\[\]]")
FREE = {"no_forcing": True}
"""llguidance's option for `free`."""


def json_schema_rule(schema: Any, param: str | None = None) -> str:
    """`%json {…}`: the right side, or a part of it, of a rule that is JSON by this schema.

    `lark = 'start: <tool_call> call\\ncall: "{\\"arguments\\": " ' + json_schema_rule(schema) + ' "}"'`. A schema with `$ref`s is
    whole in itself: `$defs` of two embedded schemas do not meet. Raises what `read_schema` and `check_shape` raise.
    """
    checked = read_schema(schema, param)
    check_shape(checked)
    return f"%json {json.dumps({keywords.OPTIONS: JSON_STYLE, **checked.document}, ensure_ascii=False)}"


def check_lark(grammar: str, param: str | None) -> str:
    """The grammar as it is compiled. Refuses what the compiler cannot bear, and schemas in it that cannot be enforced.

    Raises `InvalidRequest`: `invalid_grammar`, `invalid_schema`, `unsupported_schema`.
    """
    check_bytes(grammar, "grammar", "invalid_grammar", param)
    _check_rules(grammar, param)
    options = {key: value for _, _, each in _json_behind(_OPTIONS, grammar, param) for key, value in each.items()}
    return free(options, _OPTIONS_LINE.sub("", _with_checked_schemas(grammar, param)))


def _with_checked_schemas(grammar: str, param: str | None) -> str:
    """The same grammar with each embedded schema as it is enforced. Those of one inside another's text are left to the outer one."""
    parts, done = [], 0
    for begin, end, schema in _json_behind(_EMBEDDED, grammar, param):
        if begin < done:
            continue
        styled = schema.get(keywords.OPTIONS) == JSON_STYLE
        if styled:
            del schema[keywords.OPTIONS]
        checked = read_schema(schema, param)
        check_shape(checked)
        style = JSON_STYLE if styled else {"json_allowed_escapes": ESCAPES}
        parts += [grammar[done:begin], json.dumps({keywords.OPTIONS: style, **checked.document}, ensure_ascii=False)]
        done = end
    return "".join([*parts, grammar[done:]])


def free(options: dict[str, Any], grammar: str) -> str:
    """A grammar whose text may be cut into tokens in any way: where only one text can follow, llguidance would otherwise tokenise that
    text at each step, however long it is, and allow nothing but the first token of it."""
    return f"%llguidance {json.dumps(options | FREE)}\n{grammar}"


def json_grammar(schema: str) -> str:
    """The grammar of JSON by this schema: compact JSON of an object, checked."""
    style = json.dumps({keywords.OPTIONS: JSON_STYLE})
    return free({}, f"start: %json {style[:-1]}{', ' if schema != '{}' else ''}{schema[1:]}")


def regex_grammar(pattern: str) -> str:
    """The grammar of one pattern, matched as a whole."""
    return free({}, json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"])


def _json_behind(mark: re.Pattern[str], grammar: str, param: str | None) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The JSON objects that follow a mark: where each begins, where it ends, and what it is."""
    decoder = json.JSONDecoder()
    for found in mark.finditer(grammar):
        try:
            value, end = decoder.raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            reason = f"what follows {found[0].strip()} in the grammar is no JSON, or nested too deeply"
            raise InvalidRequest(reason, code="invalid_grammar", param=param) from None
        if not isinstance(value, dict):
            reason = f"what follows {found[0].strip()} in the grammar is no object"
            raise InvalidRequest(reason, code="invalid_grammar", param=param)
        yield found.end(), end, value


def _check_rules(grammar: str, param: str | None) -> None:
    """The compiler's stack can be no deeper than all rules together, each with the brackets inside it."""
    if sum(1 for _ in _RULE.finditer(grammar)) > RULES_MAX:
        raise InvalidRequest(
            f"the grammar has more than {RULES_MAX} rules: make it smaller", code="invalid_grammar", param=param
        )
    levels = sum(_depth(rule) + 1 for rule in _RULE.split(_LITERAL.sub("", grammar)))
    if levels > GRAMMAR_LEVELS_MAX:
        reason = f"the grammar's rules and brackets are more than {GRAMMAR_LEVELS_MAX} levels deep: make it smaller"
        raise InvalidRequest(reason, code="invalid_grammar", param=param)


def _depth(rule: str) -> int:
    deepest = depth = 0
    for found in _BRACKET.finditer(rule):
        depth += 1 if found[0] in "([" else -1
        deepest = max(deepest, depth)
    return deepest


def gbnf_as_lark(grammar: str, param: str | None) -> str:
    """The same grammar, from llama.cpp's notation. Raises `InvalidRequest` (`invalid_grammar`)."""
    check_bytes(grammar, "grammar", "invalid_grammar", param)
    if sum(1 for _ in _RULE.finditer(grammar)) > RULES_MAX:
        raise InvalidRequest(
            f"the grammar has more than {RULES_MAX} rules: make it smaller", code="invalid_grammar", param=param
        )
    try:
        return str(any_to_lark(_ESCAPE.sub(_character, grammar)))
    except RecursionError:
        raise InvalidRequest("the grammar is nested too deeply", code="invalid_grammar", param=param) from None
    except Exception as error:  # the converter raises bare `Exception`s
        raise InvalidRequest(f"the grammar is no GBNF: {str(error)[:300]}", code="invalid_grammar", param=param) from error


_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\.", re.DOTALL)


def _character(found: re.Match[str]) -> str:
    """Letters for the escapes that the converter garbles; everything else as it was."""
    digits = found[1] or found[2]
    if not digits or int(digits, 16) > 0x10FFFF:
        return found[0]
    letter = chr(int(digits, 16))
    return letter if letter.isalnum() else found[0]

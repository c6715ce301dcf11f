"""From what an answer has to look like to the automata that keep it so.

Everything here is bounded and blocks for milliseconds, at worst for a second, so it belongs into a worker thread. llguidance drops the
interpreter's lock while it compiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import attrs
import msgspec
from llguidance import LLMatcher, LLParserLimits

from tripower.backends.grammar.automaton import NO_TEXT, GrammarConstraint
from tripower.backends.grammar.lark import check_lark, gbnf_as_lark, json_grammar, regex_grammar
from tripower.backends.grammar.limits import CHOICES_MAX, LEXER_STATES_MAX, ROW_ITEMS_MAX, check_bytes
from tripower.backends.grammar.schema import NOTHING, CheckedSchema, Node, fault, read_schema, simple_subschemas
from tripower.backends.grammar.shape import check_shape
from tripower.backends.grammar.vocabulary import GrammarVocabulary, grammar_vocabulary
from tripower.runtime.engine.constraint import (
    ChoiceFormat,
    GbnfFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    LarkFormat,
    OutputFormat,
    RegexFormat,
)
from tripower.runtime.engine.contract import TextLayer
from tripower.runtime.kernel.errors import InvalidRequest

COMPILED_MAX = 32
"""Formats whose checked grammars are kept for one model: those that were asked for last."""
PLACES_TRIED_MAX = 300
"""Parts of a schema that are compiled alone to find out which one is at fault."""
_REASON_MAX = 300
_LIKELY = ("pattern", "patternProperties", "oneOf", "minProperties", "maxProperties", "allOf")
"""Keywords whose values are judged by the compiler, the likeliest first."""
_EMBEDDED = "failed to compile JSON schema: "
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


@attrs.frozen
class CompiledFormat:
    """A format for one vocabulary, checked: a text that compiles. Safe to use from any thread.

    No automaton is kept: one grows with every text that it has seen, and copies of it share what grows.
    """

    _grammar: str
    _vocabulary: GrammarVocabulary

    def new_constraint(self, param: str | None = None) -> GrammarConstraint:
        """The automaton of one sequence, at the beginning of its text. Blocks for a millisecond, for large schemas some 50."""
        return GrammarConstraint(self.new_matcher, self._vocabulary, param)

    def new_matcher(self) -> LLMatcher:
        """The grammar, compiled anew. Never raises: an error shows in the matcher."""
        return LLMatcher(self._vocabulary.tokenizer, self._grammar, log_level=0, limits=parser_limits())


def compile_format(format: OutputFormat, vocabulary: GrammarVocabulary, *, param: str | None = None) -> CompiledFormat:
    """Compile, or take what was compiled for the same bytes. `param` is the field of the request to name.

    Blocks. Raises `InvalidRequest`: `invalid_schema` for a schema that is none or that nothing satisfies, `unsupported_schema` for one
    that cannot be enforced, `invalid_grammar` for a pattern, a grammar or choices.
    """
    key = _key(format)
    with vocabulary.lock:
        if key is not None and key in vocabulary.compiled:
            vocabulary.compiled.move_to_end(key)
            return vocabulary.compiled[key]
    compiled = _compile(format, vocabulary, param)
    with vocabulary.lock:
        if key is not None:
            vocabulary.compiled[key] = compiled
            while len(vocabulary.compiled) > COMPILED_MAX:
                vocabulary.compiled.popitem(last=False)
    return compiled


def compile_constraint(
    format: OutputFormat, layer: TextLayer, vocabulary_size: int, param: str | None = "response_format"
) -> GrammarConstraint:
    """Both steps in one: a constraint for one sequence of the model with this text layer. Blocks and raises as they do."""
    return compile_format(format, grammar_vocabulary(layer, vocabulary_size), param=param).new_constraint(param)


def _key(format: OutputFormat) -> str | None:
    """One text for one format; None for what is no JSON and will be refused."""
    try:
        return json.dumps([type(format).__name__, msgspec.structs.asdict(format)], allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _compile(format: OutputFormat, vocabulary: GrammarVocabulary, param: str | None) -> CompiledFormat:
    schema: CheckedSchema | None = None
    match format:
        case JsonObjectFormat():
            grammar = json_grammar('{"type":"object"}')
        case JsonSchemaFormat():
            schema = read_schema(format.schema, param)
            check_shape(schema)
            grammar = json_grammar(schema.text)
        case RegexFormat():
            check_bytes(format.pattern, "pattern", "invalid_grammar", param)
            grammar = regex_grammar(format.pattern)
        case ChoiceFormat():
            grammar = regex_grammar(_choices_pattern(format.choices, param))
        case LarkFormat():
            grammar = check_lark(format.grammar, param)
        case GbnfFormat():
            grammar = check_lark(gbnf_as_lark(format.grammar, param), param)
    compiled = CompiledFormat(grammar, vocabulary)
    complaint = _complaint(compiled.new_matcher())
    if not complaint:
        first = compiled.new_constraint()
        first.mask()
        complaint = "no text satisfies it" if first.exhausted == NO_TEXT else first.exhausted
    if complaint and schema is not None:
        raise _schema_fault(schema, complaint, vocabulary)
    if complaint:
        raise InvalidRequest(f"the {_name(format)} {_joined(complaint)}", code="invalid_grammar", param=param)
    return compiled


def parser_limits() -> LLParserLimits:
    """What one sequence may cost: see `limits`; the fuel of a step is as llguidance has it."""
    return LLParserLimits(verbose_errors=False, max_lexer_states=LEXER_STATES_MAX, max_items_in_row=ROW_ITEMS_MAX)


def _name(format: OutputFormat) -> str:
    return {"RegexFormat": "pattern", "ChoiceFormat": "list of choices"}.get(type(format).__name__, "grammar")


def _joined(complaint: str) -> str:
    return complaint if complaint.startswith("is ") else f"cannot be used: {complaint}"


def _choices_pattern(choices: Sequence[str], param: str | None) -> str:
    """A pattern for one of these texts: letters and digits as they are, everything else by its number."""
    if not choices or len(choices) > CHOICES_MAX:
        reason = f"there are {len(choices)} choices; give 1 to {CHOICES_MAX}"
        raise InvalidRequest(reason, code="invalid_grammar", param=param)
    check_bytes("".join(choices), "list of choices", "invalid_grammar", param)
    return f"(?:{'|'.join(re.sub(r'[^a-zA-Z0-9 ]', _by_number, choice) for choice in choices)})"


def _by_number(found: re.Match[str]) -> str:
    return f"\\u{{{ord(found[0]):x}}}"


def _complaint(matcher: LLMatcher) -> str:
    """What llguidance has against a grammar, in one line; empty if nothing. Its warnings count."""
    if matcher.is_error():
        return _reason(matcher.get_error())
    return _reason("; ".join(matcher.get_grammar_warnings()))


def _reason(message: str) -> str:
    """Without the excerpt of the source and the traces that llguidance adds."""
    if message.startswith("panic"):
        return "is too large for the compiler: make it smaller"
    place = _PLACE.match(message)
    causes = re.findall(r"^error: (.+)$", message, re.MULTILINE)
    text = causes[-1] if causes else message.removeprefix(place[0] if place else "").split("\n", 1)[0].removeprefix(_EMBEDDED)
    where = f" (line {int(place[1]) - 1}, column {place[2]})" if place else ""  # the first line is `lark.free`'s
    return text[:_REASON_MAX] + where if text else ""


def _schema_fault(schema: CheckedSchema, complaint: str, vocabulary: GrammarVocabulary) -> InvalidRequest:
    """The error with the innermost place that has it on its own, where there is one."""
    pointer = ""
    for tried, node in enumerate(simple_subschemas(schema)):
        if tried == PLACES_TRIED_MAX:
            break
        if node.content == NOTHING:
            continue  # forbids what stands there, and is no fault
        if alone := _complaint_alone(node, vocabulary):
            pointer, complaint = node.pointer, alone
            if node.pointer:
                break
    code = "invalid_schema" if complaint.startswith(("Unsatisfiable", "no text satisfies")) else "unsupported_schema"
    present = [each for each in _LIKELY if each in schema.nodes[pointer].content]
    if "not disjoint" in complaint and "patternProperties" in present:
        present, complaint = ["patternProperties"], "two of its patterns match one name: write patterns that exclude each other"
    keyword = present[0] if present else ""
    what = f"keyword `{keyword}`" if keyword else "value"
    return fault(
        f"{what} cannot be enforced: {complaint}", f"{pointer}/{keyword}" if keyword else pointer, schema.param, code=code
    )


def _complaint_alone(node: Node, vocabulary: GrammarVocabulary) -> str:
    text = json.dumps(node.content, ensure_ascii=False)
    message = LLMatcher.validate_grammar(json_grammar(text), vocabulary.tokenizer, limits=parser_limits())
    return _reason(message.removeprefix("WARNING: "))

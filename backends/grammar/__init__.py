"""Answers that have to look like something: JSON schemas, patterns and grammars as masks over a model's vocabulary."""

from tripower.backends.grammar.automaton import GrammarConstraint
from tripower.backends.grammar.formats import CompiledFormat, compile_constraint, compile_format
from tripower.backends.grammar.lark import JSON_STYLE, json_schema_rule
from tripower.backends.grammar.vocabulary import GrammarVocabulary, grammar_vocabulary

__all__ = [
    "JSON_STYLE",
    "CompiledFormat",
    "GrammarConstraint",
    "GrammarVocabulary",
    "compile_constraint",
    "compile_format",
    "grammar_vocabulary",
    "json_schema_rule",
]

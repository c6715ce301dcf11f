"""JSON Schema's keywords: which are enforced, which say nothing about a document, and which cannot be enforced."""

from __future__ import annotations

from types import MappingProxyType

ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$id", "$schema", "contentEncoding", "contentMediaType", "default", "deprecated", "description",
        "discriminator", "example", "examples", "id", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
"""They pass and change nothing, as does everything that begins with `x-` except llguidance's own options."""
OPTIONS = "x-guidance"

SCHEMA_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMAS = frozenset({"additionalItems", "additionalProperties", "items"})
"""One schema each; `items` may be a list of them, too."""

COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
OTHERS = frozenset({"$ref", "const", "enum", "format", "pattern", "required", "type"})
TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})

CURES = MappingProxyType(
    {
        "contains": "give `items`, or `prefixItems` for a known place",
        "else": "give the cases as `anyOf`",
        "if": "give the cases as `anyOf`",
        "not": "say what is allowed instead",
        "nullable": 'give `"type": ["string", "null"]`',
        "then": "give the cases as `anyOf`",
        "unevaluatedItems": "give `items: false` where the items are",
        "unevaluatedProperties": "give `additionalProperties: false` where the properties are",
        "uniqueItems": "check it after the answer",
        "propertyNames": "give `patternProperties` with `additionalProperties: false`",
    }
)
"""What to write in the place of keywords that cannot be enforced."""
NO_CURE = "leave it out and check it after the answer"

HARMLESS = MappingProxyType(
    {
        "nullable": (False,),
        "propertyNames": (True, {}, {"type": "string"}),
        "unevaluatedItems": (True, {}),
        "unevaluatedProperties": (True, {}),
        "uniqueItems": (False,),
    }
)
"""Values with which a keyword that cannot be enforced forbids nothing."""

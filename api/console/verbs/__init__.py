"""All verbs by name. A new one is a module here with a tuple `VERBS`, named in `MODULES`."""

from __future__ import annotations

from tripower.api.console.verb import Verb

VERBS: dict[str, Verb] = {}

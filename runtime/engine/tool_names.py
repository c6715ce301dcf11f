"""What a tool may be called: one rule for every way in, OpenAI's and Anthropic's own.

Models have learnt such names, and every family's markup of a call can hold them without quoting.
"""

from __future__ import annotations

import re

from tripower.runtime.kernel.errors import InvalidRequest

TOOLS_MAX = 128
"""Of one request; as many as OpenAI takes."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_tool_name(name: str, param: str) -> None:
    """Raise `InvalidRequest` for a name that cannot be, found in the field `param`."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{param}: {name[:80]!r} is no name of a tool: use 1 to 64 letters of a-z and A-Z, digits, _ and -", param=param
        )

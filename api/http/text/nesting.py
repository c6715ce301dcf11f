"""How deep JSON of a client's own may be nested: schemas, template variables. What walks it later may use recursion."""

from __future__ import annotations

from typing import Any

from tripower.backends.text.formats.variables import DEPTH_MAX
from tripower.runtime.kernel import InvalidRequest


def check_depth(value: Any, param: str, depth_max: int = DEPTH_MAX) -> None:
    """Raise `InvalidRequest` for what is nested too deeply. Without recursion, and in time proportional to its size."""
    level = [value]
    for _ in range(depth_max):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inside(each)]
        if not level:
            return
    raise InvalidRequest(f"{param}: is nested more than {depth_max} levels deep; make it flatter", param=param)


def _inside(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value

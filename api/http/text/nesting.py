"""How deep JSON of a client's own may be nested: schemas, template variables. What walks it later may use recursion."""

from __future__ import annotations

from typing import Any

from tripower.runtime.kernel import InvalidRequest

DEPTH_MAX = 64


def check_depth(value: Any, param: str) -> None:
    """Raise `InvalidRequest` for what is nested too deeply. Without recursion, and in time proportional to its size."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inside(each)]
        if not level:
            return
    raise InvalidRequest(f"{param}: is nested more than {DEPTH_MAX} levels deep; make it flatter", param=param)


def _inside(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value

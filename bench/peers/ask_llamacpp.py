"""Ask llama.cpp in a child process; see `llamacpp_child` for what can be asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tripower.bench.children import module_command
from tripower.runtime.kernel import Unavailable

SECONDS_MAX = 900.0
LOG_TAIL = 1500


def ask_llamacpp(command: str, model: Path, request: object = None, *options: str) -> Any:
    """What the child prints, decoded; None for `logits`, which writes a file. Blocks.

    Raises `Unavailable` with the end of its log when it fails or takes too long.
    """
    arguments = module_command("tripower.bench.peers.llamacpp_child", command, str(model), *options)
    try:
        child = subprocess.run(
            arguments, check=False, input=json.dumps(request), capture_output=True, text=True, timeout=SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"llama.cpp took more than {SECONDS_MAX:.0f} seconds for {command}") from error
    if child.returncode:
        raise Unavailable(f"llama.cpp ended with status {child.returncode}: {child.stderr[-LOG_TAIL:].strip()}")
    return json.loads(child.stdout) if child.stdout else None

"""The engines that ours is compared with: how each is installed and started.

Each has a module `tripower.bench.peer_<name>`, which is run in a child process and answers `POST /v1/completions` as OpenAI does.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from tripower.bench.children import module_command
from tripower.runtime.kernel import InvalidConfiguration


class Peer(msgspec.Struct, frozen=True):
    """The module that the peer's wheel has, and the extra of ours that installs it."""

    module: str
    extra: str


PEERS = {
    "llamacpp": Peer("xllamacpp", "llamacpp"),
    "mistralrs": Peer("mistralrs", "mistralrs"),
    "transformers": Peer("transformers", "transformers"),
}


def check_peer(name: str | None) -> None:
    """Raises `InvalidConfiguration`, with the command that helps, when the peer's wheel is missing."""
    if name is None or find_spec(PEERS[name].module) is not None:
        return
    peer = PEERS[name]
    raise InvalidConfiguration(
        f"the peer {name} is not installed: run pip install 'tripower[{peer.extra}]', which brings {peer.module}"
    )


def peer_command(name: str, model_file: Path, *, threads: int, parallel: int, context: int) -> list[str]:
    """The command line of a peer's child, for `running_server`. `context` is in tokens, for each of `parallel` sequences."""
    arguments = {"model": model_file, "port": "{port}", "threads": threads, "parallel": parallel, "context": context}
    flat = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
    return module_command(f"tripower.bench.peer_{name}", *flat)

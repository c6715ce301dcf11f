"""The engines that ours is compared with: how each is installed and started.

Each has a module `tripower.bench.peers.<child>`, which is run in a child process and answers `POST /v1/completions` as OpenAI does.
`own-llamacpp` is llama.cpp's server again, with llama.cpp under our scheduler beside it: what the scheduler costs or gains.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from tripower.bench.children import module_command
from tripower.runtime.kernel import InvalidConfiguration


class Peer(msgspec.Struct, frozen=True):
    """The module that the peer's wheel has, the extra of ours that installs it, and how the two sides run."""

    module: str
    extra: str
    child: str
    """Which module of this folder runs it."""
    our_backend: str | None = None
    """What ours runs on beside it, where that is not left to the service."""


PEERS = {
    "llamacpp": Peer("xllamacpp", "llamacpp", "llamacpp"),
    "mistralrs": Peer("mistralrs", "mistralrs", "mistralrs"),
    "own-llamacpp": Peer("xllamacpp", "llamacpp", "llamacpp", our_backend="llamacpp"),
    "transformers": Peer("transformers", "transformers", "transformers"),
}


def check_peer(name: str | None) -> None:
    """Raises `InvalidConfiguration`, with the command that helps, when the peer's wheel is missing."""
    if name is None or find_spec(PEERS[name].module) is not None:
        return
    peer = PEERS[name]
    raise InvalidConfiguration(
        f"the peer {name} is not installed: run pip install 'tripower[{peer.extra}]', which brings {peer.module}"
    )


def peer_command(
    name: str, model_file: Path, *, threads: int, parallel: int, context: int, guesses: str | None = None
) -> list[str]:
    """The command line of a peer's child, for `running_server`. `context` is in tokens, for each of `parallel` sequences.

    `guesses`: how llama.cpp's server is to guess, see `guessing`; no other peer can be told.
    """
    arguments = {"model": model_file, "port": "{port}", "threads": threads, "parallel": parallel, "context": context}
    if guesses is not None:
        arguments["guesses"] = guesses
    flat = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
    return module_command(f"tripower.bench.peers.{PEERS[name].child}", *flat)

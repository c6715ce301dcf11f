"""Ask llama.cpp what it makes of a model file: the reference that tokenizers, logits and end tokens are checked against.

Run as a child process, so that a crash in native code ends this process and not the test run. The benches ask it as well, so the code
itself is `tripower.bench.peers.llamacpp_child`.
"""

from __future__ import annotations

from tripower.bench.peers.llamacpp_child import main

if __name__ == "__main__":
    main()

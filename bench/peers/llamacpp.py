"""llama.cpp's own HTTP server, out of the wheel `xllamacpp`, at its defaults but for threads, slots and context.

python -m tripower.bench.peers.llamacpp --model FILE --port PORT --threads N --parallel N --context N [--guesses KIND]

By default it guesses no tokens, as the server itself; see `guessing` for the kinds that it has.
"""

from __future__ import annotations

import signal

from tripower.bench.peers.front import peer_parser
from tripower.bench.peers.guessing import NONE, set_guessing


def main() -> None:
    parser = peer_parser(__doc__)
    parser.add_argument("--guesses", default=NONE, help="a kind of n-gram speculation")
    options = parser.parse_args()
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.n_gpu_layers = 0
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.parallel * options.context
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    parameters.port = options.port
    set_guessing(parameters, options.guesses)
    server = xllamacpp.Server(parameters)  # listens on threads of its own
    while server:
        signal.pause()


if __name__ == "__main__":
    main()

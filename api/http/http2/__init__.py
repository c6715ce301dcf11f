"""HTTP/2 on our own transport: frames by `h2`, requests as tasks, and a bound for everything that a client may cause."""

from tripower.api.http.http2.connection import Http2Connection

__all__ = ["Http2Connection"]

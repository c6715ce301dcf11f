"""A remote OpenAI-compatible server as an engine. `ProxyBackend` is in `backend`, which imports httpx."""

from tripower.backends.proxy.address import FORM, PREFIX, Upstream, parse_upstream

__all__ = ["FORM", "PREFIX", "Upstream", "parse_upstream"]

"""Log lines as JSON objects: one a line, the same few fields always."""

from __future__ import annotations

import logging

import msgspec

from tripower.api.http.observe.records import RequestRecord

_encode = msgspec.json.Encoder().encode


class JsonFormatter(logging.Formatter):
    """`ts` in seconds since 1970, `level`, `target`, `event`; a request's own fields in `request`.

    `with_tracebacks` adds exceptions, whose text may hold anything: for debugging only.
    """

    def __init__(self, *, with_tracebacks: bool = False) -> None:
        super().__init__()
        self._with_tracebacks = with_tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """One line, never more."""
        request = getattr(record, "request", None)
        fields: dict[str, object] = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "target": record.name,
            "event": "request" if isinstance(request, RequestRecord) else record.getMessage(),
        }
        if isinstance(request, RequestRecord):
            fields["request"] = request
        if record.exc_info:
            kind = record.exc_info[0]
            fields["exception"] = "" if kind is None else kind.__name__
            if self._with_tracebacks:
                fields["traceback"] = self.formatException(record.exc_info)
        return _encode(fields).decode()

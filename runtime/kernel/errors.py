"""What can go wrong, one class for each reaction of the caller.

| class | what the caller should do |
| --- | --- |
| `InvalidRequest` | fix the request |
| `Overloaded` | retry later, here |
| `Unavailable` | retry, perhaps elsewhere: this part is down or restarting |
| `DeadlineExceeded` | give up: the time is over |
| `ModelRefused` | choose another model file |
| `DeviceFailed` | suspect the device |
| `InvalidConfiguration` | fix the settings (exit status 2, before anything was opened) |

Foreign exceptions are mapped to one of these once, at the seam, with `from`. `code` is stable and for programs; the message is
for people, names the cure, and never holds a prompt or a key.
"""

from __future__ import annotations


class TripowerError(Exception):
    """Base of all errors that callers are meant to see.

    `code` is a stable identifier, `status` the HTTP status that fits, `kind` the `type` field of an OpenAI error body,
    `retryable` whether the same request may succeed later, `retry_after` an estimate in seconds.
    """

    code = "internal_error"
    status = 500
    kind = "server_error"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.kind = kind or type(self).kind
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(TripowerError):
    """The request itself is at fault; `param` names the field."""

    code = "invalid_value"
    status = 400
    kind = "invalid_request_error"


class NotFound(InvalidRequest):
    """What the request names does not exist."""

    code = "model_not_found"
    status = 404
    kind = "not_found_error"


class Overloaded(TripowerError):
    """Every place is taken; the same request may be accepted after `retry_after` seconds."""

    code = "queue_full"
    status = 503
    kind = "overloaded_error"
    retryable = True


class Unavailable(TripowerError):
    """The part that would answer has stopped, crashed or is starting again."""

    code = "unavailable"
    status = 503
    kind = "overloaded_error"
    retryable = True


class ActorGone(Unavailable):
    """The actor ended, crashed or is restarting before it answered."""

    code = "actor_gone"


class InboxFull(Overloaded):
    """A `tell_nowait` found no room."""

    code = "inbox_full"


class DeadlineExceeded(TripowerError):
    """The request's time is over, waiting or running."""

    code = "deadline_exceeded"
    status = 504
    kind = "timeout_error"


class ModelRefused(TripowerError):
    """A model file cannot be used; `param` names the field, key or tensor at fault."""

    code = "model_refused"
    status = 503
    kind = "server_error"


class DeviceFailed(TripowerError):
    """A step failed on the device, or the device no longer answers."""

    code = "device_failed"
    status = 500
    kind = "server_error"
    retryable = True


class InvalidConfiguration(TripowerError):
    """Settings that cannot be honoured; the message lists every violation, a line each."""

    code = "invalid_configuration"
    status = 500

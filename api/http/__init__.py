"""The HTTP border: `bind` first, then `start_api` on a runtime, `Drain` at the end."""

from tripower.api.http.actor import ApiActor, Drain, Drained, start_api
from tripower.api.http.binding import BoundSockets, bind
from tripower.api.http.figures import ApiStatistics

__all__ = ["ApiActor", "ApiStatistics", "BoundSockets", "Drain", "Drained", "bind", "start_api"]

"""What every endpoint works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from tripower.actors.dialogue import GenerationFinished
from tripower.actors.runtime import Runtime
from tripower.api.engines import EMBEDDED
from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.exchange import Exchange
from tripower.api.http.figures import Figures
from tripower.api.http.observe.keepers import Keepers
from tripower.runtime.configuration import AuthSettings, SchedulerSettings, ServerSettings
from tripower.runtime.kernel import InvalidRequest

if TYPE_CHECKING:
    from tripower.api.overview.collector import Collector


@attrs.frozen
class Service:
    """The runtime that answers, the settings in force, those who keep records, and the keys."""

    runtime: Runtime
    server: ServerSettings
    scheduler: SchedulerSettings
    keepers: Keepers
    keyring: Keyring = attrs.Factory(lambda: Keyring(AuthSettings(), {}))
    active: set[Exchange] = attrs.Factory(set)
    """Requests whose answer is not complete."""
    overview: Collector = attrs.Factory(lambda self: _collector(self), takes_self=True)
    """Makes the view of all of it."""

    @property
    def figures(self) -> Figures:
        """The border's counters."""
        return self.keepers.figures

    def count(self, exchange: Exchange, model: str, finished: GenerationFinished) -> None:
        """An answer of a model is complete."""
        exchange.finish(finished)
        tokens = finished.usage.completion_tokens
        self.figures.count_generation(model, finished.timings, tokens=tokens, reason=finished.reason)

    async def only_model(self) -> str:
        """The model meant by a request for text that names none: the only one there is, or the only one beside encoders.

        Where models were named at the start it is one of those, so that what others ask for on demand changes nothing. Raises `InvalidRequest` where that is not clear.
        """
        known = await self.runtime.models()
        models = [card for card in known if card.pinned] or known
        writers = [card for card in models if card.backend != EMBEDDED] or models
        if len(writers) != 1:
            raise InvalidRequest(f"model is missing, and {len(models)} are served: name one of them", param="model")
        return writers[0].name


def _collector(service: Service) -> Collector:
    from tripower.api.overview.collector import Collector  # which needs this package first

    return Collector(service.runtime, service.active)

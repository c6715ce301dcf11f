"""What every endpoint works with."""

from __future__ import annotations

import attrs

from tripower.actors.runtime import Runtime
from tripower.api.http.figures import Figures
from tripower.runtime.configuration import SchedulerSettings, ServerSettings
from tripower.runtime.kernel import InvalidRequest


@attrs.frozen
class Service:
    """The runtime that answers, the settings in force, and the border's own counters."""

    runtime: Runtime
    server: ServerSettings
    scheduler: SchedulerSettings
    figures: Figures

    async def only_model(self) -> str:
        """The model meant by a request that names none. Raises `InvalidRequest` unless exactly one is served."""
        models = await self.runtime.models()
        if len(models) != 1:
            raise InvalidRequest(f"model is missing, and {len(models)} are served: name one of them", param="model")
        return models[0].name

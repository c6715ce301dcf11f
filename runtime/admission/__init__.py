"""Who may enter, who waits, who is refused."""

from tripower.runtime.admission.accounts import PRIORITY_MAX, PRIORITY_SECONDS
from tripower.runtime.admission.caller import ANYBODY, Caller
from tripower.runtime.admission.gate import SHARE_EXCEEDED, Gate, GateStatistics, displacement, places_max

__all__ = [
    "ANYBODY",
    "PRIORITY_MAX",
    "PRIORITY_SECONDS",
    "SHARE_EXCEEDED",
    "Caller",
    "Gate",
    "GateStatistics",
    "displacement",
    "places_max",
]

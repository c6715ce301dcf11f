"""Who may enter, who waits, who is refused."""

from tripower.runtime.admission.caller import ANYBODY, Caller
from tripower.runtime.admission.gate import Gate, GateStatistics

__all__ = ["ANYBODY", "Caller", "Gate", "GateStatistics"]

"""Who may enter, who waits, who is refused."""

from tripower.runtime.admission.gate import Gate, GateStatistics

__all__ = ["Gate", "GateStatistics"]

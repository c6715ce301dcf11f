"""Members of a continuous batch and what a step does to them."""

from tripower.runtime.batching.batch import NO_REPORTS, Batch, BatchStatistics, BrokenStep, Member

__all__ = ["NO_REPORTS", "Batch", "BatchStatistics", "BrokenStep", "Member"]

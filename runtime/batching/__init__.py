"""Members of a continuous batch and what a step does to them."""

from tripower.runtime.batching.batch import Batch, BatchStatistics, BrokenStep, Member

__all__ = ["Batch", "BatchStatistics", "BrokenStep", "Member"]

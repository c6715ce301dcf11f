"""Prompts that speculation and prefix reuse are measured with: what people ask for again and again, in the project's own words."""

from tripower.bench.workloads.prompts import Prompt, Workloads, workloads

__all__ = ["Prompt", "Workloads", "workloads"]

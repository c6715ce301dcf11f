"""Prompts that begin alike: what reuse saves, what a miss costs, and whether the answers are the same."""

"""Answers that are held to a schema: whether they keep it, and what that costs."""

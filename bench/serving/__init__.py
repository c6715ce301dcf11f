"""Benches of the HTTP service: tokens a second, long prompts beside streams, long runs, disconnects."""

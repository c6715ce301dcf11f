"""Requests of every kind of wrongness, and what is expected of the answers."""

"""Benches of the service under hostile load: ten times the capacity, a noisy key, a crowd of connections, streams as fast as they go."""

"""Lines of Python that run inside a live server: compiled with top-level await, driven a step at a time, cut off when they hold the loop."""

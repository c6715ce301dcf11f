"""The engine by itself, without HTTP and without actors, against what the machine allows."""

"""The service as it describes itself to machines."""

"""What `tripower` ends with."""

OK = 0
REFUSED = 1
"""The request was refused or failed."""
USAGE = 2
"""Bad usage or configuration; nothing was opened."""
FORCED = 4
"""A server was shut down before all of its work was done."""
NO_CONNECTION = 5
"""The server at `--url` cannot be reached."""
BY_SIGNAL = 128
"""Added to a signal's number, as shells do: 130 after Ctrl-C, 141 when whoever read the output has gone."""

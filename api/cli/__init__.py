"""The command line: `tripower run`, `chat`, `serve`, `pull`, `list`, `rm`, `ps`, `doctor`, `settings`, …

`arguments` says what can be typed and imports nothing but argparse, so that `--version` and `--help` are instant; each command is a
module of its own with a `main(arguments) -> int`, imported when it is asked for; `program` ties them together.
"""

from tripower.api.cli.program import main, start

__all__ = ["main", "start"]

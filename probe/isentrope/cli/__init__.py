"""The command line `isentrope`.

- `frame`: the table of commands, each loaded when it is asked for
- `commands`: commands that need only the probe
- `watch`: the live view of `isentrope watch`
- `doctor`: what `isentrope doctor` checks
"""

from isentrope.cli.frame import main

__all__ = ["main"]

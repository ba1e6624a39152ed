"""One short file per command: HELP (one line), add_arguments(parser), run(args) -> exit code.

A command's module imports what it needs inside its functions: all of them are loaded to print the help.
"""

from __future__ import annotations

# In the order in which the help lists them.
COMMANDS = (
    *("diagnose", "explain", "demo", "report", "timeline", "serve", "compare"),
    *("fr", "torchfrtrace", "compile", "tlparse", "metrics", "link", "chakra", "query", "export", "tables"),
    *("record", "snapshot", "logs", "desync", "attach", "completion"),
)

"""One line per finding, for spreadsheets and for `cut`."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.model.finding import Report, format_ranks
from rankscope.render import Options
from rankscope.render.escape import escape

EXTENSION = "tsv"


def render(report: Report, options: Options) -> Iterator[str]:
    yield "severity\tcode\tranks\ttitle"
    for finding in report.findings:
        # Titles hold text from the trace: escape() keeps a hostile one from breaking the line or the terminal.
        yield "\t".join((finding.severity, finding.code, format_ranks(finding.ranks), escape(finding.title)))

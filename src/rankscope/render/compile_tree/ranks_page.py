"""index.html above the reports of several ranks: the verdict, the ranks that differ and how, then each rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.model.finding import Report, count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import Trace
from rankscope.render.cards import Cards, skipped_checks
from rankscope.render.compile_tree.outputs import RankTree, TreeOptions
from rankscope.render.compile_tree.page_data import RankView, Totals, code_by_line, compilations_of, totals_of
from rankscope.render.compile_tree.ranks_files import write_shared_files
from rankscope.render.compile_tree.ranks_sections import RankTotals, apart_phrase, difference, rank_table, totals_tiles
from rankscope.render.compile_tree.ranks_words import WORDS
from rankscope.render.html import NOTHING, Html, joined, markup, page, text
from rankscope.render.listing import ROWS_SHOWN, Column, Later, blocks, cell, link, n_bytes_phrase, row, table
from rankscope.render.rank_groups import compile_runs, graph_estimates, rank_groups

STYLES = ("page.css", "parts.css", "compile.css")
SCRIPTS = ("page.js",)
FINDINGS_SHOWN = 50
_FILES = {
    "chromium_events.json": "what each rank's compiler did and when, one process per rank: open it in ui.perfetto.dev",
    "collective_schedules.json": "the collectives of each compiled graph, in order",
    "runtime_estimations.json": "how long the compiler expects each operation to take",
    "chromium_trace_with_runtime.json": "the same as a timeline, one process per rank and one thread per graph",
    "graph_execution_order.json": "the order in which each rank ran its graphs",
}


class RankRow(NamedTuple):
    tree: RankTree
    totals: Totals
    places: dict[str, str]  # compile id -> function and line


def write_ranks(trace: Trace, report: Report, folder: str, trees: Sequence[RankTree], options: TreeOptions) -> None:
    """Written after the ranks' own reports, which it links."""
    names = write_shared_files(trace, folder, trees)
    body = _Landing(trace, report, trees, options).body(Path(folder), names)
    content = page(_title(trees), body, STYLES, SCRIPTS)
    Path(folder, "index.html").write_text(content, encoding="utf-8", errors="replace", newline="\n")


def _title(trees: Sequence[RankTree]) -> str:
    return f"torch.compile on {count_noun(len(trees), 'rank')}"


class _Landing:
    """One run of the job. Ranks are compared only within it."""

    def __init__(self, trace: Trace, report: Report, trees: Sequence[RankTree], options: TreeOptions) -> None:
        self.trace, self.report, self.trees, self.options = trace, report, trees, options
        self.later = Later()
        self.lines: dict[tuple[str, int], str] = {}
        self.rows = [self._rank_row(tree) for tree in trees]
        self.ranked = [RankTotals(each.tree.rank, each.totals) for each in self.rows]
        file_ids = {file_id for tree in trees for file_id in tree.file_ids}
        self.logs = [log for log in trace.table("compile_logs").rows() if log["file_id"] in file_ids]
        self.run = max((log["run"] for log in self.logs), default=0)
        self.ranks = compile_runs(trace).get(self.run, ())
        self.groups = {aspect: rank_groups(trace, self.run, aspect) for aspect in WORDS}

    def _rank_row(self, tree: RankTree) -> RankRow:
        view = RankView(self.trace, tree)
        self.lines |= code_by_line(view)
        compilations = compilations_of(view)
        places = {
            each.key[1]: f"{each.label}" + (f" ({each.function}, {self._short(each.place)})" if each.place else "")
            for each in compilations
        }
        return RankRow(tree, totals_of(view, compilations), places)

    def _short(self, site: str) -> str:
        base = self.options.base.rstrip(os.sep) + os.sep if self.options.base else ""
        return site.removeprefix(base) if base else site

    def body(self, folder: Path, names: Sequence[str]) -> Iterator[Html]:
        sections = [
            ("findings", "Findings", self._findings()),
            ("differences", "What the ranks did the same and differently", self._differences()),
            ("ranks", "Ranks", self._rank_table()),
            ("estimates", "Expected run time of graphs", self._estimates()),
            ("files", "Files about all ranks", _file_list(folder, names)),
        ]
        places = joined(markup('<a href="#{}">{}</a>', anchor, anchor.capitalize()) for anchor, _, _ in sections)
        search = markup('<input type="search" id="search" placeholder="Search" aria-label="Search this page">')
        home = _title(self.trees)
        yield markup('<div class="bar"><span class="home"><b>{}</b></span><nav>{}</nav>{}</div>', home, places, search)
        yield markup("<main>{}{}", self.options.header_html, self._verdict())
        for anchor, title, content in sections:
            yield markup('<section id="{}"><h2>{}<span class="hits"></span></h2>{}</section>', anchor, title, content)
        yield markup('<p id="nothing" hidden>Nothing on this page matches all of these words.</p></main>')
        yield self.later.script()

    def _verdict(self) -> Html:
        counts = [
            count_noun(number, severity) for severity in ("error", "warning") if (number := self.report.count(severity))
        ]
        apart = apart_phrase(self.groups)
        said = " and ".join(counts) if counts else "No problems found" if not apart else "Differences"
        shown = joined(
            markup(
                '<div><dt><a href="#ranks">{}</a></dt><dd>{}<small>{}</small></dd></div>',
                noun,
                number,
                detail,
            )
            for number, noun, detail in totals_tiles(self.ranked)
        )
        verdict = f"{said} on {count_noun(len(self.trees), 'rank')}" + (f"; {apart}" if apart else "")
        return markup('<p class="kicker">{}</p><h1>{}</h1><dl class="tiles">{}</dl>', self._kicker(), verdict, shown)

    def _kicker(self) -> Html:
        known = [f"ranks {format_ranks(self.ranks)}"] if self.ranks else []
        n_unranked = sum(each.tree.rank < 0 for each in self.rows)
        known += ["logs without a rank are not compared"] * bool(n_unranked)
        n_runs = len(set(self.trace.table("compile_logs").array("run").tolist()))
        known += [f"run {self.run + 1} of {n_runs} (other runs left out)"] * (n_runs > 1)
        if cut := {log["rank"] for log in self.logs if log["is_cut"] and log["rank"] >= 0}:
            known.append(f"truncated logs: {ranks_phrase(cut)}")
        return text(" · ".join(known))

    def _findings(self) -> Html:
        cards = Cards(self.lines, self.options.meanings, self.options.base)
        numbered = enumerate(self.report.findings, start=1)
        shown = [cards.card(f"finding-{number}", finding) for number, finding in numbered]
        none = NOTHING if shown else markup("<p>No problems found.</p>")
        return blocks(self.later, "cards", shown, FINDINGS_SHOWN) + none + skipped_checks(self.report.checks)

    def _differences(self) -> Html:
        return joined(
            difference(aspect, groups, len(self.ranks), self._place) for aspect, groups in self.groups.items()
        )

    def _place(self, rank: int, compile_id: str) -> str:
        of_rank = next((each for each in self.rows if each.tree.rank == rank), None)
        return of_rank.places.get(compile_id, f"[{compile_id}]") if of_rank else f"[{compile_id}]"

    def _rank_table(self) -> Html:
        folders = {each.tree.rank: each.tree.folder for each in self.rows}

        def linked(totals: RankTotals) -> Html:
            return link(f"{folders[totals.rank]}/index.html", totals.name)

        return rank_table(self.later, "ranks", self.ranked, self.groups, linked, ROWS_SHOWN)

    def _estimates(self) -> Html:
        graphs = graph_estimates(self.trace, self.run)
        if not graphs:
            return markup('<p class="faint">Not compared. {}</p>', WORDS["tensors"].absent)
        columns = [Column("Graph")]
        columns += [Column(name, is_number=True) for name in ("Ranks", "Fastest", "Rank", "Slowest", "Rank", "Apart")]
        rows = [
            row(
                [
                    cell(text(self._place(graph.slowest_rank, graph.compile_id))),
                    cell(str(graph.n_ranks), graph.n_ranks),
                    cell(_milliseconds(graph.fastest_ns), graph.fastest_ns),
                    cell(str(graph.fastest_rank), graph.fastest_rank),
                    cell(_milliseconds(graph.slowest_ns), graph.slowest_ns),
                    cell(str(graph.slowest_rank), graph.slowest_rank),
                    cell(_milliseconds(graph.slowest_ns - graph.fastest_ns), graph.slowest_ns - graph.fastest_ns),
                ]
            )
            for graph in graphs
        ]
        about = markup("<p>Estimated by the compiler, not measured. Fast ranks wait for slow ones.</p>")
        return about + table(self.later, "estimates", columns, rows)


def _milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _file_list(folder: Path, names: Sequence[str]) -> Html:
    items = joined(
        markup(
            '<li>{} <span class="faint">{}</span>: {}</li>',
            link(name, markup("<code>{}</code>", name)),
            n_bytes_phrase(os.path.getsize(folder / name)),
            _FILES[name],
        )
        for name in names
    )
    return markup("<ul>{}</ul>", items)

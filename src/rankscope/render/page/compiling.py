"""What torch.compile did, all ranks together: who differs, what it cost and where, why it recompiled, what broke."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankscope.model.finding import Finding, count_noun, ranks_phrase
from rankscope.render.compile_tree import index_sections as sections
from rankscope.render.compile_tree.page_data import Compilation, Row
from rankscope.render.compile_tree.ranks_sections import (
    RankTotals,
    apart_phrase,
    difference,
    rank_table,
    totals_tiles,
)
from rankscope.render.compile_tree.ranks_words import WORDS
from rankscope.render.compile_tree.stack_trie import chip
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.listing import Column, blocks, cell, fold, row, table
from rankscope.render.page.compiling_files import embed, file_item, file_versions, outputs_of, records_with_text
from rankscope.render.page.compiling_job import Classes, Job, rank_totals
from rankscope.render.page.compiling_rows import JobView, fitting, row_bytes
from rankscope.render.page.contents import Contents, View, absent, view
from rankscope.render.rank_groups import Aspect, RankGroup, compile_runs, rank_groups

Place = tuple[str, int | str]  # a file, and a line or a function of it
ANCHOR = "compile"
TITLE = "Compile"
ROOM = 0.3  # of the page
MAX_HTML = 3_000_000  # also where the page is served: a browser has to lay it out
RANKS_SHOWN = 20
GROUPS_SHOWN = 12
MAX_FAIL = 5_000  # characters of an exception
MESSAGES_SHOWN = 20
ALL_FILES = "rankscope compile PATH -o report/"
_COMPILATION_BYTES = 2_000  # about what one takes, its list of files included
_RANK_BYTES = 280
_LEVELS = {"critical": 0, "error": 1, "warning": 2, "info": 3, "debug": 4}
_PANE = markup(
    '<dialog class="artifact" aria-labelledby="artifact-name"><header><b id="artifact-name"></b>'
    "<a download hidden>Download</a><button>Close</button></header><p></p><div></div></dialog>"
)
_TABLES_WITH_CONTENT = ("compilations", "compile_stacks", "graph_breaks", "recompiles", "compile_errors", "log_lines")


@view("compiling", place=35)
def compiling_view(contents: Contents) -> View:
    trace = contents.trace
    if not trace.has("compile_logs"):
        command = "rankscope record --only compile-log -o traces/ -- torchrun train.py"
        return absent(ANCHOR, TITLE, "This capture has no torch.compile logs.", command)
    if not any(map(trace.has, _TABLES_WITH_CONTENT)):
        n_logs = count_noun(len(trace.table("compile_logs")), "log")
        said = markup('<p class="absent">Nothing was compiled: no compilations in {}.</p>', n_logs)
        return View(ANCHOR, TITLE, said, is_absent=True)
    made = _Compiling(contents)
    trace.derived[compile_anchor] = made.anchors()
    n_compilations = sum(each.totals.n_compilations for each in made.totals)
    return View(ANCHOR, TITLE, made.body(), badge=f"{n_compilations:,}" if n_compilations else "")


def compile_anchor(contents: Contents, finding: Finding) -> str:
    """Where the view, once it is made, shows what the finding is about: a compilation, or the view as a whole."""
    anchors: dict[Place, str] = contents.trace.derived.get(compile_anchor, {})
    for site in filter(None, (finding.location, finding.peer_location)):
        anchor = anchors.get((site.file, site.line)) or anchors.get((site.file, site.function))
        if anchor:
            return anchor
    return ANCHOR


class _Compiling:
    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.later = contents.later
        self.job = Job(contents.trace)
        self.totals = rank_totals(self.job)
        self.html_room = min(contents.room(ROOM) // 2, MAX_HTML)
        records = records_with_text(contents.trace)
        classes = Classes(self.job, records)
        chosen = classes.by_interest()[: max(20, self.html_room * 3 // 5 // _COMPILATION_BYTES)]
        if len(chosen) < len(classes.shown):
            self._left_out(len(chosen), len(classes.shown), "different compilations", ALL_FILES)
        versions = file_versions(self.job, classes, records, chosen)
        places = embed(contents, versions, contents.room(ROOM) // 2) if self._shows_files else [""] * len(versions)
        self._note_files(places)
        self.view = JobView(self.job, classes, chosen, outputs_of(versions, places))
        self.has_files = any(places)
        compilations = self.view.compilations()
        compilations = [each._replace(fail=self._quotable(each.fail)) for each in compilations]
        base = contents.options.base.rstrip(os.sep) + os.sep if contents.options.base else ""
        known = {each.key: each for each in compilations}
        self.page = sections.Page(self.view, compilations, known, self.later, base, file_item)
        self._thin("compile_ledger", 0.1, "lines with compile time", lambda entry: -entry["total_ns"])
        self._thin("graph_breaks", 0.1, "graph breaks", lambda entry: (not entry["is_user"], -entry["n_times"]))
        self._thin("recompiles", 0.1, "failed guards", lambda entry: -len(entry.get("ranks", ())))
        self._thin("log_lines", 0.05, "different messages", lambda entry: _LEVELS.get(entry["level"], 9))
        self._thin("compile_errors", 0.05, "errors", lambda entry: -entry["n_times"])

    @property
    def _shows_files(self) -> bool:
        return self.contents.options.shows_source

    def _note_files(self, places: Sequence[str]) -> None:
        n_missing = sum(not position for position in places)
        if not n_missing:
            return
        if self._shows_files:
            said = f"{n_missing:,} of {count_noun(len(places), 'compile file')} did not fit in the page"
            said += f". For all of them, run {ALL_FILES}."
        else:
            said = "Compile files were left out: graphs and generated code quote the model's source lines."
        self.contents.remarks.append(said)

    def _left_out(self, n_shown: int, n_all: int, what: str, command: str) -> None:
        self.contents.remarks.append(
            f"The page shows the {n_shown:,} most important of {n_all:,} {what}. For all of them, run {command}."
        )

    def _thin(self, name: str, share: float, what: str, order: Callable[[Row], Any]) -> None:
        """Keeps the rows that fit, chosen in the given order; the kept rows stay in their original order."""
        rows = self.view.rows(name)
        kept = fitting(sorted(rows, key=order), int(self.html_room * share), row_bytes)
        if len(kept) < len(rows):
            self._left_out(len(kept), len(rows), what, f'rankscope query PATH "from {name}"')
            stays = set(map(id, kept))
            rows[:] = [entry for entry in rows if id(entry) in stays]

    def body(self) -> Html:
        parts = [
            ("What the ranks did the same and differently", self._differences()),
            ("Failures", self._failures()),
            ("Compile time by line", sections.ledger(self.page)),
            ("Recompilations", sections.chains(self.page)),
            ("Graph breaks", sections.graph_breaks(self.page)),
            ("What was compiled, by call stack", sections.stacks(self.page)),
            ("Compilations and their files", sections.compilation_table(self.page)),
            ("Ranks", self._ranks()),
            ("TORCH_LOGS messages", self._messages()),
        ]
        shown = joined(markup("<h3>{}</h3>{}", title, body) for title, body in parts if body)
        return self._head() + shown + (_PANE if self.has_files else NOTHING)

    def anchors(self) -> dict[Place, str]:
        """The compilation behind a line or a function: by its breaks, its guards, then the frame itself."""
        anchors: dict[Place, str] = {}
        for name in ("graph_breaks", "recompiles"):
            for entry in self.view.rows(name):
                compilation = self.page.known.get((entry["file_id"], entry["compile_id"]))
                if compilation and entry["file"]:
                    anchors.setdefault((entry["file"], entry["line"]), compilation.anchor)
        for each in sorted(self.page.compilations, key=lambda each: not each.fail):
            file, _, line = each.place.rpartition(":")
            if file:
                anchors.setdefault((file, int(line)), each.anchor)
                anchors.setdefault((file, each.function), each.anchor)
        return anchors

    def _head(self) -> Html:
        totals = totals_tiles(self.totals)
        if not self.job.is_traced:  # neither times nor caches
            totals = [totals[0], *totals[2:4]]
        tiles = joined(
            markup("<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>", noun, number, detail)
            for number, noun, detail in totals
        )
        return markup('<p class="kicker">{}</p><dl class="tiles">{}</dl>', joined(self._known(), " · "), tiles)

    def _known(self) -> Iterator[str]:
        job = self.job
        ranks = [rank for rank in job.ranks if rank >= 0]
        yield f"logs from {ranks_phrase(ranks)}" if ranks else count_noun(len(job.logs), "log")
        if not job.is_traced:
            yield "from TORCH_LOGS, which has no times and no files; TORCH_TRACE has both"
        if job.n_runs > 1:
            yield f"run {job.run + 1} of {job.n_runs} (other runs left out)"
        if job.cut_ranks:
            yield f"truncated logs: {ranks_phrase(job.cut_ranks)}"

    def _differences(self) -> Html:
        n_ranks = len(compile_runs(self.contents.trace).get(self.job.run, ()))
        if n_ranks < 2:
            return NOTHING
        groups = self._groups()
        split = {aspect: parts for aspect, parts in groups.items() if len(parts) > 1}
        said = joined(self._difference(aspect, parts, n_ranks) for aspect, parts in split.items())
        if said:
            said = markup("<p>{}</p>{}", _sentence(apart_phrase(groups)), said)
        rest = joined(
            difference(aspect, parts, n_ranks, self._place, "h4")
            for aspect, parts in groups.items()
            if aspect not in split
        )
        alike = [WORDS[aspect].title.lower() for aspect, parts in groups.items() if len(parts) == 1]
        title = f"The same on all: {'; '.join(alike)}" if alike else "Not compared"
        return said + (fold(text(title), rest, kind="faint") if rest else NOTHING)

    def _groups(self) -> dict[Aspect, tuple[RankGroup, ...]]:
        return {aspect: rank_groups(self.contents.trace, self.job.run, aspect) for aspect in WORDS}

    def _difference(self, aspect: Aspect, groups: Sequence[RankGroup], n_ranks: int) -> Html:
        said = difference(aspect, groups[:GROUPS_SHOWN], n_ranks, self._place, "h4")
        n_more = len(groups) - GROUPS_SHOWN
        return said + (
            markup('<p class="faint">{} of ranks.</p>', count_noun(n_more, "more group")) if n_more > 0 else NOTHING
        )

    def _place(self, rank: int, compile_id: str) -> str:
        same = [each for each in self.page.compilations if each.key[1] == compile_id]
        of_rank = next((each for each in same if rank in each.ranks), None)
        if not of_rank or not of_rank.place:
            return f"[{compile_id}]"
        return f"{of_rank.label} ({of_rank.function}, {of_rank.place.rsplit('/', 1)[-1]})"

    def _failures(self) -> Html:
        failed = [each for each in self.page.compilations if each.fail]
        items = [self._failure(each) for each in sorted(failed, key=lambda each: (len(each.ranks), each.anchor))]
        quoted = {each.fail for each in failed}
        for entry in self.view.rows("compile_errors"):
            said = f"{entry['type']}: {entry['message']}"
            if not any(entry["message"] in text for text in quoted):
                where = self.page.place(entry["file"], entry["line"])
                items.append(_problem(where, entry.get("ranks", ()), self._quotable(said)))
        return blocks(self.later, "compile-failures", items, 10)

    def _quotable(self, said: str) -> str:
        """The text of an exception quotes the lines that led to it, and may have no end."""
        if not self.contents.options.shows_source:
            return said.partition("\n")[0]
        return said if len(said) <= MAX_FAIL else said[:MAX_FAIL] + " …"

    def _failure(self, each: Compilation) -> Html:
        site = markup('<span class="place">{}</span>', self.page.shown(each.place))
        return _problem(markup("{} <b>{}</b> {}", chip(each), each.function, site), each.ranks, each.fail)

    def _ranks(self) -> Html:
        if len(self.totals) < 2:
            return NOTHING
        slowest = sorted(self.totals, key=lambda each: (-each.totals.total_ns, -each.totals.n_compilations, each.rank))
        shown = fitting(slowest, self.html_room // 5, lambda each: _RANK_BYTES)
        if len(shown) < len(slowest):
            self._left_out(len(shown), len(slowest), "ranks", 'rankscope query PATH "from compile_ledger"')

        def named(totals: RankTotals) -> str:
            return totals.name

        return rank_table(self.later, "compile-ranks", shown, self._groups(), named, RANKS_SHOWN)

    def _messages(self) -> Html:
        entries = self.view.rows("log_lines")
        if entries and not self.contents.options.shows_source:
            return markup(
                '<p class="faint">{} left out because they may quote code.</p>', count_noun(len(entries), "message")
            )
        entries = sorted(entries, key=lambda entry: (_LEVELS.get(entry["level"], 9), entry["line"]))
        columns = [Column("Level"), Column("From"), Column("Times", True), Column("Message")]
        columns += [Column("Ranks")] * self.view.names_ranks
        rows = [
            row(
                [
                    cell(text(entry["level"])),
                    cell(text(entry["channel"])),
                    cell(f"{entry['n_times']:,}", entry["n_times"]),
                    cell(_message(entry["message"])),
                    *([sections.ranked(entry["ranks"])] if self.view.names_ranks else []),
                ]
            )
            for entry in entries
        ]
        return table(self.later, "messages", columns, rows, MESSAGES_SHOWN)


def _problem(where: str, ranks: Sequence[int], said: str) -> Html:
    whose = markup(' <span class="faint">{}</span>', sections.whose(ranks)) if ranks else NOTHING
    return markup('<div class="problem"><div>{}{}</div><p class="fail">{}</p></div>', where, whose, said)


def _message(said: str) -> Html:
    first, _, more = said.partition("\n")
    shown = markup("<code>{}</code>", first)
    return fold(shown, markup("<pre>{}</pre>", more)) if more else shown


def _sentence(said: str) -> str:
    return f"{said[:1].upper()}{said[1:]}."

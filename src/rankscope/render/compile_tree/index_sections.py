"""What was compiled, section by section: for the index of one rank, and for the page about all of them.

Where ranks are shown together, rows and compilations carry `ranks`; without them nothing is said about ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rankscope.model.artifact_names import other_spelling
from rankscope.model.finding import count_noun, format_duration, format_ranks, ranks_phrase
from rankscope.render.compile_tree.outputs import Output
from rankscope.render.compile_tree.page_data import (
    STATUS_WORDS,
    Compilation,
    Key,
    RankView,
    Row,
    stacks_of,
)
from rankscope.render.compile_tree.page_help import about_file
from rankscope.render.compile_tree.stack_trie import chip, trie_html
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.listing import (
    Column,
    Later,
    blocks,
    cell,
    fold,
    link,
    n_bytes_phrase,
    outer_link,
    row,
    table,
    without_empty,
)

MAX_FILES_INLINE = 1500  # beyond this the files of a compilation are put in when it is opened
MAX_VERSIONS_INLINE = 400  # the same for the versions of recompiled frames
PHASES = (
    ("dynamo", "Dynamo: tracing Python"),
    ("aot", "AOTAutograd"),
    ("inductor", "Inductor"),
    ("code_gen", "generating and compiling code"),
    ("triton", "Triton kernels"),
    ("autotune", "autotuning kernels"),
)
CHAIN_HEADS = ("Version", "Failed guard", "Compiled for", "Called with")
RANGES_SHOWN = 6  # of ranks, in a cell


def tree_file(output: Output) -> Html:
    """A file of the report's folder, or an address that was logged."""
    if output.how == "link":
        return markup("<li>{}</li>", outer_link(output.url, text(output.name)))
    size = output.row["n_payload_bytes"]
    known = markup(' <span class="faint">{}</span>', n_bytes_phrase(size)) if size else NOTHING
    attempt = markup(' <span class="faint">{}</span>', output.label) if "_" in output.label else NOTHING
    readable = markup(" ({})", link(output.readable, "readable")) if output.readable else NOTHING
    other = other_spelling(output.name)
    also = markup(' <span class="faint">(also {})</span>', other) if other else NOTHING
    return markup(
        "<li>{}{}{}{}{}</li>",
        link(output.path, text(output.name), about_file(output.name)),
        also,
        readable,
        attempt,
        known,
    )


class Page(NamedTuple):
    view: RankView
    compilations: list[Compilation]
    known: dict[Key, Compilation]
    later: Later
    base: str  # what is left out at the beginning of file names
    file: Callable[[Output], Html] = tree_file  # how a file of a compilation is listed

    def shown(self, file: str) -> str:
        return file.removeprefix(self.base) if self.base else file

    def place(self, file: str, line: int) -> Html:
        return markup('<span class="place">{}:{}</span>', self.shown(file), line) if file else NOTHING


def ledger(page: Page) -> Html:
    rows = page.view.ledger()
    whole = max((entry["total_ns"] for entry in rows), default=0)
    if not whole:
        return NOTHING
    columns = [
        Column("Where"),
        Column("Time", True),
        Column("Rank", True, "the rank on which it took longest"),
        Column("All ranks", True, "total time of all ranks"),
        Column("Phases", False, "bar length is time; the longest bar is the most expensive line"),
        Column("Compilations", True),
        Column("Recompiling", True, "time of all compilations but the first of each frame"),
        Column("Breaks", True),
        Column("Backward", True),
        Column("At run time", True),
    ]
    used = [(name, words) for name, words in PHASES if any(entry[f"{name}_ns"] > 0 for entry in rows)]
    legend = joined(markup('<span class="{}">{}</span>', name, words) for name, words in used)
    cells = [
        [
            cell(markup("<b>{}</b> {}", entry["function"], page.place(entry["file"], entry["line"]))),
            timed(entry["total_ns"]),
            cell(str(rank), rank) if (rank := entry.get("slowest_rank", -1)) >= 0 else cell("", -1),
            timed(entry.get("all_ranks_ns", 0)),
            cell(_bar(entry, whole), kind="bars"),
            counted(entry["n_compilations"]),
            timed(entry["recompile_ns"]),
            counted(entry["n_graph_breaks"]),
            timed(entry["backward_ns"]),
            timed(entry["runtime_ns"]),
        ]
        for entry in rows
    ]
    columns, cells = without_empty(columns, cells)
    return markup('<p class="legend">{}</p>', legend) + table(
        page.later, "ledger", columns, [row(each) for each in cells], 50
    )


def _bar(entry: Row, whole: int) -> Html:
    """Drawn, not styled: a page's policy allows no styles but its own."""
    parts, at = [], 0.0
    for name, words in PHASES:
        width = 100 * max(entry[f"{name}_ns"], 0) / whole
        if width >= 0.05:
            about = f"{words}: {format_duration(entry[f'{name}_ns'])}"
            parts.append(_piece(name, at, width, about))
            at += width
    rest = 100 * max(entry["total_ns"], 0) / whole - at
    if rest >= 0.05:
        parts.append(_piece("rest", at, rest, "other"))
    return markup('<svg class="strip" role="img" aria-label="time by phase">{}</svg>', joined(parts))


def _piece(name: str, at: float, width: float, about: str) -> Html:
    return markup(
        '<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="100%"><title>{}</title></rect>',
        name,
        at,
        width,
        about,
    )


def chains(page: Page) -> Html:
    """Per frame: each version, the guard that failed, what it expected and what it was called with."""
    by_frame: dict[tuple[int, int], dict[str, list[Row]]] = {}
    for entry in page.view.rows("recompiles"):
        # Versions of a chain that several ranks share may be shown by different ones of them.
        chain: int = entry["chain"] if "chain" in entry else entry["file_id"]
        frame = by_frame.setdefault((chain, entry["frame_id"]), {})
        frame.setdefault(entry["compile_id"], []).append(entry)
    n_versions = sum(map(len, by_frame.values()))
    later = page.later if n_versions > MAX_VERSIONS_INLINE else None
    chained = [
        _chain(
            page, [(page.known.get((failed[0]["file_id"], name)), failed) for name, failed in versions.items()], later
        )
        for versions in by_frame.values()
    ]
    chained.sort(key=lambda item: -item[0])
    return blocks(page.later, "chains", [html for _, html in chained], 50)


def _chain(
    page: Page, versions: Sequence[tuple[Compilation | None, list[Row]]], later: Later | None
) -> tuple[int, Html]:
    """What it cost, and its HTML."""
    compiled = [compilation for compilation, _ in versions if compilation]
    cost = sum(compilation.duration_ns for compilation in compiled)
    where = ""
    if compiled:
        where = markup('<b>{}</b> <span class="place">{}</span>', compiled[0].function, page.shown(compiled[0].place))
    ranks = versions[0][1][0].get("ranks", ())
    summary = f"recompiled {count_noun(len(versions), 'time')}"
    summary += f", {'up to ' if ranks else ''}{format_duration(cost)}" if cost else ""
    summary += f", {whose(ranks)}" if ranks else ""
    rows = joined(_version(page, *version) for version in versions)
    heads = joined(markup('<th scope="col">{}</th>', head) for head in CHAIN_HEADS)
    body = markup(
        '<div class="wide"><table class="chain"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>', heads, rows
    )
    return cost, fold(
        markup('{} <span class="faint">{}</span>', where, summary), body, later=later, is_open=True, kind="item"
    )


def _version(page: Page, compilation: Compilation | None, failed: Sequence[Row]) -> Html:
    """The newest earlier version is the closest match; the others follow it."""
    newest, *older = failed
    label = chip(compilation) if compilation else text(f"[{newest['compile_id']}]")
    where = page.place(newest["file"], newest["line"])
    code = markup('<code class="source">{}</code>', newest["code"]) if newest["code"] else NOTHING
    hint = markup('<div class="faint">{}</div>', newest["hint"]) if newest["hint"] else NOTHING
    others = joined(markup("<li>{}: <code>{}</code></li>", each["against"], each["guard"]) for each in older)
    more = fold(f"{len(older)} older", markup("<ul>{}</ul>", others), kind="faint") if older else NOTHING
    return row(
        [
            cell(label),
            cell(markup("<code>{}</code><div>{} {}</div>{}{}", newest["guard"], where, code, hint, more)),
            cell(markup("<code>{}</code>", newest["expected"])),
            cell(markup("<code>{}</code>", newest["actual"])),
        ]
    )


def graph_breaks(page: Page) -> Html:
    """Distinct by line and reason; the user's own code first, then by how often."""
    distinct: dict[tuple[str, int, str], list[Row]] = {}
    for entry in page.view.rows("graph_breaks"):
        distinct.setdefault((entry["file"], entry["line"], entry["reason"]), []).append(entry)
    ordered = sorted(distinct.values(), key=lambda same: (not same[0]["is_user"], -_times(same)))
    columns = [Column("Times", True), Column("Where"), Column("Why"), Column("Frames")]
    columns += [Column("Ranks")] * any("ranks" in same[0] for same in ordered)
    return table(page.later, "breaks", columns, [_break(page, same) for same in ordered], 100)


def _break(page: Page, same: Sequence[Row]) -> Html:
    first = same[0]
    where = markup("{} in {}", page.place(first["file"], first["line"]), first["function"])
    if first["code"]:
        where += markup('<div><code class="source">{}</code></div>', first["code"])
    if first["caller_file"]:
        where += markup(
            '<div class="faint">called from {}</div>', page.place(first["caller_file"], first["caller_line"])
        )
    why = markup("<div>{}</div>", first["reason"])
    hints = joined(markup("<li>{}</li>", hint) for hint in first["hints"].splitlines())
    about = outer_link(first["url"], f"torch's page about {first['break_id']}") if first["url"] else NOTHING
    if first["explanation"] or hints or about:
        body = markup("<p>{}</p><ul>{}</ul><p>{}</p>", first["explanation"], hints, about)
        why += fold("What to do", body, kind="faint")
    keys = dict.fromkeys((entry["file_id"], entry["compile_id"]) for entry in same)
    chips = [chip(page.known[key]) for key in keys if key in page.known]
    more = f" and {len(chips) - 12:,} more" if len(chips) > 12 else ""
    frames = cell(markup('<span class="chips">{}{}</span>', joined(chips[:12], " "), more))
    ranks = {rank for entry in same for rank in entry["ranks"]} if "ranks" in first else None
    return row([counted(_times(same)), cell(where), cell(why), frames, *([] if ranks is None else [ranked(ranks)])])


def _times(same: Sequence[Row]) -> int:
    """Equal rows of several ranks become one."""
    return sum(entry.get("n_times", 1) for entry in same)


def caches(page: Page) -> Html:
    files = {(output.row["file_id"], output.row["record"]): output.path for output in page.view.tree.outputs}
    columns = [
        Column("Compilation"),
        Column("Cache"),
        Column("Outcome"),
        Column("Time", True),
        Column("Key"),
        Column("Detail"),
    ]
    made = []
    for entry in page.view.rows("cache_events"):
        compilation = page.known.get((entry["file_id"], entry["compile_id"]))
        key = markup("<code>{}</code>", entry["key"][:16])
        path = files.get((entry["file_id"], entry["record"]))
        detail = entry["reason"] or (entry["detail"] if entry["detail"] != entry["outcome"] else "")
        made.append(
            row(
                [
                    cell(chip(compilation) if compilation else text(entry["compile_id"])),
                    cell(text(entry["cache"])),
                    cell(markup('<span class="outcome {}">{}</span>', entry["outcome"], entry["outcome"])),
                    timed(entry["taken_ns"]),
                    cell(link(path, key, "cache key") if path else key),
                    cell(text(detail)),
                ]
            )
        )
    counts = Counter((entry["cache"], entry["outcome"]) for entry in page.view.rows("cache_events"))
    said = "; ".join(f"{cache}: {_outcomes(outcome, number)}" for (cache, outcome), number in sorted(counts.items()))
    return markup("<p>{}.</p>", said) + table(page.later, "caches", columns, made, 20) if made else NOTHING


def _outcomes(outcome: str, number: int) -> str:
    return count_noun(number, outcome, f"{outcome}s" if outcome == "hit" else f"{outcome}es")


def stacks(page: Page) -> Html:
    known = stacks_of(page.view)
    hanging = ((known.get(each.key, ()), chip(each)) for each in page.compilations)
    drawn = trie_html("trie", hanging, page.base, page.later)
    if not drawn:
        return NOTHING
    legend = joined(
        (markup('<span class="chip {}">{}</span>', name, words) for name, words in STATUS_WORDS.items()), " "
    )
    options = markup('<label><input type="checkbox" id="foreign"> show torch and Python frames</label>')
    return markup('<p class="legend">{}</p><p class="options">{}</p>{}', legend, options, drawn)


def compilation_table(page: Page) -> Html:
    n_files = sum(len(each.outputs) for each in page.compilations)
    later = page.later if n_files > MAX_FILES_INLINE else None
    columns = [
        Column("Id"),
        Column("Function and files"),
        Column("Time", True),
        Column("Operators", True, "in the captured graph"),
        Column("Nodes", True, "in the captured graph"),
        Column("Guards", True),
        Column("Attempts", True),
        Column("Size", True, "of all its files"),
    ]
    if any(each.ranks for each in page.compilations):
        columns.insert(2, Column("Ranks"))
        columns[3] = Column("Time", True, "on the slowest rank")
    cells = [_compiled(page, each, later, has_files=n_files > 0) for each in page.compilations]
    if not n_files:  # a text log, which knows next to nothing of a compilation
        columns, cells = without_empty(columns, cells)
    rows = [row(row_cells, each.anchor) for row_cells, each in zip(cells, page.compilations, strict=True)]
    return table(page.later, "compilations", columns, rows, 100)


def _compiled(page: Page, each: Compilation, later: Later | None, *, has_files: bool) -> list[Html]:
    name = (
        markup("<b>{}</b>", each.function) if each.function else "not part of a compilation" if not each.key[1] else ""
    )
    site = markup(' <span class="place">{}</span>', page.shown(each.place)) if each.place else NOTHING
    files = joined(map(page.file, each.outputs))
    shown = joined([name, site])
    if has_files or each.fail:
        n_files = (
            markup(' <span class="faint whole">{}</span>', count_noun(len(each.outputs), "file"))
            if has_files
            else NOTHING
        )
        fail = markup('<p class="fail">{}</p>', each.fail) if each.fail else NOTHING
        shown = fold(shown + n_files, markup('{}<ul class="files">{}</ul>', fail, files), later=later)
    return [
        cell(chip(each)),
        cell(shown),
        *([ranked(each.ranks)] if each.ranks else []),
        timed(each.duration_ns),
        counted(each.n_ops),
        counted(each.n_nodes),
        counted(each.n_guards),
        counted(each.n_attempts if each.status else -1),
        cell(n_bytes_phrase(each.n_bytes) if has_files else "", each.n_bytes),
    ]


def timed(nanoseconds: int) -> Html:
    return cell(format_duration(nanoseconds) if nanoseconds > 0 else "", max(nanoseconds, 0))


def counted(number: int) -> Html:
    return cell(f"{number:,}" if number > 0 else "", max(number, 0))


def ranked(ranks: Sequence[int] | set[int]) -> Html:
    """A cell."""
    known = {rank for rank in ranks if rank >= 0}
    unknown = ["unknown"] * any(rank < 0 for rank in ranks)
    return cell(text(", ".join([*([format_ranks(known, RANGES_SHOWN)] if known else []), *unknown])))


def whose(ranks: Sequence[int], limit: int = RANGES_SHOWN) -> str:
    """The ranks in a sentence; a log may not name the rank that wrote it."""
    known = [rank for rank in ranks if rank >= 0]
    unknown = ["a log with no rank"] * (len(known) < len(ranks))
    return " and ".join([*([ranks_phrase(known, limit)] if known else []), *unknown])

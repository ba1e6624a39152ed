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
from rankscope.render.html import text
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


def tree_file(output: Output) -> str:
    """A file of the report's folder, or an address that was logged."""
    if output.how == "link":
        return f"<li>{outer_link(output.url, text(output.name))}</li>"
    size = output.row["n_payload_bytes"]
    known = f' <span class="faint">{n_bytes_phrase(size)}</span>' if size else ""
    attempt = f' <span class="faint">{text(output.label)}</span>' if "_" in output.label else ""
    readable = f" ({link(output.readable, 'readable')})" if output.readable else ""
    other = other_spelling(output.name)
    also = f' <span class="faint">(also {text(other)})</span>' if other else ""
    return f"<li>{link(output.path, text(output.name), about_file(output.name))}{also}{readable}{attempt}{known}</li>"


class Page(NamedTuple):
    view: RankView
    compilations: list[Compilation]
    known: dict[Key, Compilation]
    later: Later
    base: str  # what is left out at the beginning of file names
    file: Callable[[Output], str] = tree_file  # how a file of a compilation is listed

    def shown(self, file: str) -> str:
        return file.removeprefix(self.base) if self.base else file

    def place(self, file: str, line: int) -> str:
        return f'<span class="place">{text(self.shown(file))}:{line}</span>' if file else ""


def ledger(page: Page) -> str:
    rows = page.view.ledger()
    whole = max((entry["total_ns"] for entry in rows), default=0)
    if not whole:
        return ""
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
    legend = "".join(f'<span class="{name}">{text(words)}</span>' for name, words in used)
    cells = [
        [
            cell(f"<b>{text(entry['function'])}</b> {page.place(entry['file'], entry['line'])}"),
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
    return f'<p class="legend">{legend}</p>' + table(page.later, "ledger", columns, [row(each) for each in cells], 50)


def _bar(entry: Row, whole: int) -> str:
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
    return f'<svg class="strip" role="img" aria-label="time by phase">{"".join(parts)}</svg>'


def _piece(name: str, at: float, width: float, about: str) -> str:
    return f'<rect class="{name}" x="{at:.2f}%" width="{width:.2f}%" height="100%"><title>{text(about)}</title></rect>'


def chains(page: Page) -> str:
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
) -> tuple[int, str]:
    """What it cost, and its HTML."""
    compiled = [compilation for compilation, _ in versions if compilation]
    cost = sum(compilation.duration_ns for compilation in compiled)
    where = ""
    if compiled:
        where = f'<b>{text(compiled[0].function)}</b> <span class="place">{text(page.shown(compiled[0].place))}</span>'
    ranks = versions[0][1][0].get("ranks", ())
    told = f"recompiled {count_noun(len(versions), 'time')}"
    told += f", {'up to ' if ranks else ''}{format_duration(cost)}" if cost else ""
    told += f", {whose(ranks)}" if ranks else ""
    rows = "".join(_version(page, *version) for version in versions)
    heads = "".join(f'<th scope="col">{head}</th>' for head in CHAIN_HEADS)
    body = f'<div class="wide"><table class="chain"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    return cost, fold(f'{where} <span class="faint">{text(told)}</span>', body, later=later, is_open=True, kind="item")


def _version(page: Page, compilation: Compilation | None, failed: Sequence[Row]) -> str:
    """The newest earlier version is the closest match; the others follow it."""
    newest, *older = failed
    label = chip(compilation) if compilation else text(f"[{newest['compile_id']}]")
    where = page.place(newest["file"], newest["line"])
    code = f'<code class="source">{text(newest["code"])}</code>' if newest["code"] else ""
    hint = f'<div class="faint">{text(newest["hint"])}</div>' if newest["hint"] else ""
    others = "".join(f"<li>{text(each['against'])}: <code>{text(each['guard'])}</code></li>" for each in older)
    more = fold(f"{len(older)} older", f"<ul>{others}</ul>", kind="faint") if older else ""
    return row(
        [
            cell(label),
            cell(f"<code>{text(newest['guard'])}</code><div>{where} {code}</div>{hint}{more}"),
            cell(f"<code>{text(newest['expected'])}</code>"),
            cell(f"<code>{text(newest['actual'])}</code>"),
        ]
    )


def graph_breaks(page: Page) -> str:
    """Distinct by line and reason; the user's own code first, then by how often."""
    distinct: dict[tuple[str, int, str], list[Row]] = {}
    for entry in page.view.rows("graph_breaks"):
        distinct.setdefault((entry["file"], entry["line"], entry["reason"]), []).append(entry)
    ordered = sorted(distinct.values(), key=lambda same: (not same[0]["is_user"], -_times(same)))
    columns = [Column("Times", True), Column("Where"), Column("Why"), Column("Frames")]
    columns += [Column("Ranks")] * any("ranks" in same[0] for same in ordered)
    return table(page.later, "breaks", columns, [_break(page, same) for same in ordered], 100)


def _break(page: Page, same: Sequence[Row]) -> str:
    first = same[0]
    where = f"{page.place(first['file'], first['line'])} in {text(first['function'])}"
    if first["code"]:
        where += f'<div><code class="source">{text(first["code"])}</code></div>'
    if first["caller_file"]:
        where += f'<div class="faint">called from {page.place(first["caller_file"], first["caller_line"])}</div>'
    why = f"<div>{text(first['reason'])}</div>"
    hints = "".join(f"<li>{text(hint)}</li>" for hint in first["hints"].splitlines())
    about = outer_link(first["url"], f"torch's page about {text(first['break_id'])}") if first["url"] else ""
    if first["explanation"] or hints or about:
        body = f"<p>{text(first['explanation'])}</p><ul>{hints}</ul><p>{about}</p>"
        why += fold("What to do", body, kind="faint")
    keys = dict.fromkeys((entry["file_id"], entry["compile_id"]) for entry in same)
    chips = [chip(page.known[key]) for key in keys if key in page.known]
    more = f" and {len(chips) - 12:,} more" if len(chips) > 12 else ""
    frames = cell(f'<span class="chips">{" ".join(chips[:12])}{more}</span>')
    ranks = {rank for entry in same for rank in entry["ranks"]} if "ranks" in first else None
    return row([counted(_times(same)), cell(where), cell(why), frames, *([] if ranks is None else [ranked(ranks)])])


def _times(same: Sequence[Row]) -> int:
    """Equal rows of several ranks become one."""
    return sum(entry.get("n_times", 1) for entry in same)


def caches(page: Page) -> str:
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
        key = f"<code>{text(entry['key'][:16])}</code>"
        path = files.get((entry["file_id"], entry["record"]))
        detail = entry["reason"] or (entry["detail"] if entry["detail"] != entry["outcome"] else "")
        made.append(
            row(
                [
                    cell(chip(compilation) if compilation else text(entry["compile_id"])),
                    cell(text(entry["cache"])),
                    cell(f'<span class="outcome {text(entry["outcome"])}">{text(entry["outcome"])}</span>'),
                    timed(entry["taken_ns"]),
                    cell(link(path, key, "cache key") if path else key),
                    cell(text(detail)),
                ]
            )
        )
    counts = Counter((entry["cache"], entry["outcome"]) for entry in page.view.rows("cache_events"))
    said = "; ".join(f"{cache}: {_outcomes(outcome, number)}" for (cache, outcome), number in sorted(counts.items()))
    return f"<p>{text(said)}.</p>" + table(page.later, "caches", columns, made, 20) if made else ""


def _outcomes(outcome: str, number: int) -> str:
    return count_noun(number, outcome, f"{outcome}s" if outcome == "hit" else f"{outcome}es")


def stacks(page: Page) -> str:
    known = stacks_of(page.view)
    hanging = ((known.get(each.key, ()), chip(each)) for each in page.compilations)
    drawn = trie_html("trie", hanging, page.base, page.later)
    if not drawn:
        return ""
    legend = " ".join(f'<span class="chip {name}">{text(words)}</span>' for name, words in STATUS_WORDS.items())
    options = '<label><input type="checkbox" id="foreign"> show torch and Python frames</label>'
    return f'<p class="legend">{legend}</p><p class="options">{options}</p>{drawn}'


def compilation_table(page: Page) -> str:
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
    rows = [row(own, each.anchor) for own, each in zip(cells, page.compilations, strict=True)]
    return table(page.later, "compilations", columns, rows, 100)


def _compiled(page: Page, each: Compilation, later: Later | None, *, has_files: bool) -> list[str]:
    name = f"<b>{text(each.function)}</b>" if each.function else "not part of a compilation" if not each.key[1] else ""
    place = f' <span class="place">{text(page.shown(each.place))}</span>' if each.place else ""
    files = "".join(map(page.file, each.outputs))
    shown = f"{name}{place}"
    if has_files or each.fail:
        n_files = f' <span class="faint whole">{count_noun(len(each.outputs), "file")}</span>' if has_files else ""
        fail = f'<p class="fail">{text(each.fail)}</p>' if each.fail else ""
        shown = fold(f"{shown}{n_files}", f'{fail}<ul class="files">{files}</ul>', later=later)
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


def timed(nanoseconds: int) -> str:
    return cell(format_duration(nanoseconds) if nanoseconds > 0 else "", max(nanoseconds, 0))


def counted(number: int) -> str:
    return cell(f"{number:,}" if number > 0 else "", max(number, 0))


def ranked(ranks: Sequence[int] | set[int]) -> str:
    """A cell."""
    known = {rank for rank in ranks if rank >= 0}
    unknown = ["unknown"] * any(rank < 0 for rank in ranks)
    return cell(text(", ".join([*([format_ranks(known, RANGES_SHOWN)] if known else []), *unknown])))


def whose(ranks: Sequence[int], limit: int = RANGES_SHOWN) -> str:
    """The ranks in a sentence; a log may not name the rank that wrote it."""
    known = [rank for rank in ranks if rank >= 0]
    unknown = ["a log with no rank"] * (len(known) < len(ranks))
    return " and ".join([*([ranks_phrase(known, limit)] if known else []), *unknown])

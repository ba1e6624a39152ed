"""The report on an export: what may not hold for other inputs, and where in the code it comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from rankscope.model.finding import Report, count_noun
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace
from rankscope.render.compile_tree.export_problems import (
    UNREADABLE,
    Export,
    Expression,
    Frame,
    Problem,
    Row,
    read_export,
)
from rankscope.render.compile_tree.outputs import RankTree, TreeOptions, directory_of
from rankscope.render.compile_tree.small_pages import BACK
from rankscope.render.html import NOTHING, Html, joined, markup, page

_WORDS = {
    "Guard Evaluated": (
        "The guard {subject} was evaluated: the program is correct only where it holds. The export fails if the "
        "declared shapes go beyond it.",
        "Declare the dimension as it really is (Dim.AUTO, or tighter bounds), or change the code that needs the guard.",
    ),
    "Data Dependent Error": (
        "Whether {subject} holds depends on data. It was assumed to be {outcome}, and asserts were added to the graph.",
        "If it always holds, assert it with torch._check(...) before this line.",
    ),
    "Data Dependent Guard": (
        "{subject} depends on data, so torch could not decide it.",
        "Assert what holds with torch._check(...) before this line, or use torch.cond to keep both branches.",
    ),
    "Missing Fake Kernel": (
        "{subject} has no fake kernel, so the shape of its output is unknown until it runs.",
        "Register one with torch.library.register_fake.",
    ),
    "Mismatched Fake Kernel": (
        "The fake kernel of {subject} and the real kernel return different results: {outcome}",
        "Correct the function registered with torch.library.register_fake.",
    ),
    UNREADABLE: (
        "This record reports a problem, but it is damaged: {subject}",
        "Export again: the job was interrupted, or the copy of its log is incomplete.",
    ),
}
_WITH_PAGE = ("Guard Evaluated", "Data Dependent Error", "Data Dependent Guard")
_HOW_TO_RECORD = "Run torch.export.draft_export with TORCH_DTRACE=FOLDER, and run rankscope on that folder."


def write_export(trace: Trace, report: Report, tree: RankTree, folder: str, options: TreeOptions) -> list[str]:
    """index.html, a page for each guard, and the exported programs, numbered as tlparse does."""
    export = read_export(trace, tree)
    programs, pages = _paths(export)
    for path, row in programs.items():
        _write(folder, path, mapped_log(trace, row["file_id"]).payload(row))
    for path, problem in pages.items():
        _write(folder, path, _guard_page(problem))
    paths = {(problem.row["file_id"], problem.row["record"]): path for path, problem in pages.items()}
    body = [*_verdict(export, _is_cut(trace, tree.file_ids)), *_problem_table(export.problems, paths)]
    body += [markup('<p>The exported program: <a href="{}">{}</a></p>', path, path) for path in programs]
    body += _findings(report)
    _write(folder, "index.html", page("Draft Export Report", body).encode("utf-8", "replace"))
    return ["index.html", *programs, *pages]


def _write(folder: str, path: str, content: bytes) -> None:
    target = os.path.join(folder, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content)


def _paths(export: Export) -> tuple[dict[str, Row], dict[str, Problem]]:
    """One counter for both. Pages that tlparse does not have are named after their record: nobody's number moves."""
    with_page = [problem for problem in export.problems if problem.title in _WITH_PAGE]
    entries: list[tuple[Row, Problem | None]] = [(row, None) for row in export.programs]
    entries += [(problem.row, problem) for problem in with_page]
    order = {file_id: index for index, file_id in enumerate(dict.fromkeys(row["file_id"] for row, _ in entries))}
    entries.sort(key=lambda entry: (order[entry[0]["file_id"]], entry[0]["record"]))
    programs: dict[str, Row] = {}
    pages: dict[str, Problem] = {}
    number = 0
    for row, problem in entries:
        directory = directory_of(*(row[name] for name in ("autograd_id", "frame_id", "frame_compile_id", "attempt")))
        if problem is None:
            programs[f"{directory}/exported_program_{number}.txt"] = row
        elif problem.is_known_to_tlparse and row["kind"] != "guard_on_data_dependent_error":
            pages[f"{directory}/symbolic_guard_information_{number}.html"] = problem
        else:
            stem = f"{directory}/symbolic_guard_information_record_{row['record']}"
            pages[f"{stem}_of_log_{row['file_id']}.html" if f"{stem}.html" in pages else f"{stem}.html"] = problem
            continue
        number += 1
    return programs, pages


def _is_cut(trace: Trace, file_ids: Sequence[int]) -> bool:
    logs = trace.table("compile_logs").rows()
    return any(log["is_cut"] for log in logs if log["file_id"] in file_ids)


def _verdict(export: Export, is_cut: bool) -> Iterator[Html]:
    yield markup("<h1>Draft Export Report</h1>")
    n_problems = len(export.problems)
    if n_problems:
        headline = f"{count_noun(n_problems, 'problem')} found"
        effect = (
            "the exported program may be wrong for inputs other than the one it was exported with"
            if export.programs
            else "the log has no exported program"
        )
        yield markup("<p><b>{}</b>: {}.</p>", headline, effect)
    elif not export.is_recorded:
        yield markup("<p>The log has no record of an export. {}</p>", _HOW_TO_RECORD)
    elif is_cut or export.n_unreadable:
        yield markup(
            "<p>The readable records show no problem, but the log is damaged: a problem may be in the lost part.</p>"
        )
    elif not export.programs:
        yield markup("<p>An export started, but the log has no exported program: it failed or did not finish.</p>")
    else:
        yield markup("<p>No problems found: torch.export.export() produces the same program.</p>")
    if export.n_unreadable:
        yield markup("<p>{} in the log could not be read.</p>", count_noun(export.n_unreadable, "record"))


def _problem_table(problems: Sequence[Problem], paths: dict[tuple[int, int], str]) -> Iterator[Html]:
    if not problems:
        return
    heads = joined(markup("<th>{}</th>", name) for name in ("Failure Type", "Reason", "Where", "Additional Info"))
    yield markup("<table><thead><tr>{}</tr></thead><tbody>", heads)
    for problem in problems:
        reason, remedy = _WORDS[problem.title]
        name = f"torch.ops.{problem.subject}" if "Fake Kernel" in problem.title else problem.subject
        parts = {"{subject}": markup("<code>{}</code>", name), "{outcome}": markup("<code>{}</code>", problem.outcome)}
        words = joined(parts.get(word, word) for word in re.split(r"(\{\w+\})", reason))
        path = paths.get((problem.row["file_id"], problem.row["record"]))
        more = markup(' <a href="{}">Stacks, variables and the origin of the expression</a>', path) if path else NOTHING
        cells = (problem.title, words, _place(problem.place), remedy, more)
        yield markup("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td></tr>", *cells)
    yield markup("</tbody></table>")


def _place(frame: Frame | None) -> Html:
    if frame is None:
        return NOTHING
    code = markup("<br><code>{}</code>", frame.code) if frame.code else NOTHING
    return markup("{}:{} in {}{}", frame.file, frame.line, frame.function, code)


def _guard_page(problem: Problem) -> bytes:
    body = [
        BACK,
        markup("<h1>Where <code>{}</code> comes from</h1>", problem.subject),
    ]
    body.append(markup("<p>{}</p>", problem.title))
    body += _stack("Your code", problem.user_stack, is_open=True)
    body += _stack("All frames", problem.stack, is_open=not problem.user_stack)
    for heading, values in problem.variables.items():
        body.append(markup("<h2>{}</h2>", heading))
        body.append(markup("<pre>{}</pre>", "\n".join(f"{name}: {value}" for name, value in values.items())))
    body.append(markup("<h2>How it was computed</h2>"))
    body += _expression(problem.origin) if problem.origin else [markup("<p>Not recorded in the log.</p>")]
    return page(f"Symbolic guard {problem.subject}", body).encode("utf-8", "replace")


def _stack(heading: str, frames: Iterable[Frame], *, is_open: bool) -> Iterator[Html]:
    lines = [f"{frame.file}:{frame.line} in {frame.function}\n    {frame.code}" for frame in frames]
    if lines:
        yield markup("<details{}><summary>{}</summary>", " open" if is_open else "", heading)
        yield markup("<pre>{}</pre></details>", "\n".join(lines))


def _expression(expression: Expression) -> Iterator[Html]:
    frame = expression.user_stack[-1] if expression.user_stack else None
    made = f"{expression.method}({', '.join(expression.arguments)})" if expression.method else "a value from the data"
    yield markup("<ul><li><code>{}</code> = <code>{}</code> {}", expression.result, made, _place(frame))
    yield from _stack("All frames", expression.stack, is_open=False)
    for part in expression.parts:
        yield from _expression(part)
    yield markup("</li></ul>")


def _findings(report: Report) -> Iterator[Html]:
    if report.findings:
        yield markup("<h2>Findings</h2><ul>")
        for finding in report.findings:
            yield markup("<li>{}[{}] {}</li>", finding.severity, finding.code, finding.title)
        yield markup("</ul>")

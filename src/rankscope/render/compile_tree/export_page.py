"""The report on an export: what may not hold for other inputs, and where in the code it comes from."""

from __future__ import annotations

import os
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
from rankscope.render.html import page, text

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
    body += [f'<p>The exported program: <a href="{text(path)}">{text(path)}</a></p>' for path in programs]
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
    order = {file_id: place for place, file_id in enumerate(dict.fromkeys(row["file_id"] for row, _ in entries))}
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


def _verdict(export: Export, is_cut: bool) -> Iterator[str]:
    yield "<h1>Draft Export Report</h1>"
    n_problems = len(export.problems)
    if n_problems:
        found = f"{count_noun(n_problems, 'problem')} found"
        effect = (
            "the exported program may be wrong for inputs other than the one it was exported with"
            if export.programs
            else "the log has no exported program"
        )
        yield f"<p><b>{found}</b>: {effect}.</p>"
    elif not export.is_recorded:
        yield f"<p>The log has no record of an export. {_HOW_TO_RECORD}</p>"
    elif is_cut or export.n_unreadable:
        yield "<p>The readable records show no problem, but the log is damaged: a problem may be in the lost part.</p>"
    elif not export.programs:
        yield "<p>An export started, but the log has no exported program: it failed or did not finish.</p>"
    else:
        yield "<p>No problems found: torch.export.export() produces the same program.</p>"
    if export.n_unreadable:
        yield f"<p>{count_noun(export.n_unreadable, 'record')} in the log could not be read.</p>"


def _problem_table(problems: Sequence[Problem], paths: dict[tuple[int, int], str]) -> Iterator[str]:
    if not problems:
        return
    heads = "".join(f"<th>{name}</th>" for name in ("Failure Type", "Reason", "Where", "Additional Info"))
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    for problem in problems:
        reason, remedy = _WORDS[problem.title]
        name = f"torch.ops.{problem.subject}" if "Fake Kernel" in problem.title else problem.subject
        words = reason.format(subject=f"<code>{text(name)}</code>", outcome=f"<code>{text(problem.outcome)}</code>")
        path = paths.get((problem.row["file_id"], problem.row["record"]))
        more = f' <a href="{text(path)}">Stacks, variables and the origin of the expression</a>' if path else ""
        where = _place(problem.place)
        yield f"<tr><td>{text(problem.title)}</td><td>{words}</td><td>{where}</td><td>{text(remedy)}{more}</td></tr>"
    yield "</tbody></table>"


def _place(frame: Frame | None) -> str:
    if frame is None:
        return ""
    code = f"<br><code>{text(frame.code)}</code>" if frame.code else ""
    return f"{text(frame.file)}:{text(frame.line)} in {text(frame.function)}{code}"


def _guard_page(problem: Problem) -> bytes:
    body = [
        BACK,
        f"<h1>Where <code>{text(problem.subject)}</code> comes from</h1>",
    ]
    body.append(f"<p>{text(problem.title)}</p>")
    body += _stack("Your code", problem.user_stack, is_open=True)
    body += _stack("All frames", problem.stack, is_open=not problem.user_stack)
    for heading, values in problem.variables.items():
        body.append(f"<h2>{text(heading)}</h2>")
        body.append("<pre>" + "\n".join(f"{text(name)}: {text(value)}" for name, value in values.items()) + "</pre>")
    body.append("<h2>How it was computed</h2>")
    body += _expression(problem.origin) if problem.origin else ["<p>Not recorded in the log.</p>"]
    return page(f"Symbolic guard {problem.subject}", body).encode("utf-8", "replace")


def _stack(heading: str, frames: Iterable[Frame], *, is_open: bool) -> Iterator[str]:
    lines = [
        f"{text(frame.file)}:{text(frame.line)} in {text(frame.function)}\n    {text(frame.code)}" for frame in frames
    ]
    if lines:
        yield f"<details{' open' if is_open else ''}><summary>{text(heading)}</summary>"
        yield "<pre>" + "\n".join(lines) + "</pre></details>"


def _expression(expression: Expression) -> Iterator[str]:
    frame = expression.user_stack[-1] if expression.user_stack else None
    made = f"{expression.method}({', '.join(expression.arguments)})" if expression.method else "a value from the data"
    yield f"<ul><li><code>{text(expression.result)}</code> = <code>{text(made)}</code> {_place(frame)}"
    yield from _stack("All frames", expression.stack, is_open=False)
    for part in expression.parts:
        yield from _expression(part)
    yield "</li></ul>"


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield "<h2>Findings</h2><ul>"
        for finding in report.findings:
            yield f"<li>{text(finding.severity)}[{text(finding.code)}] {text(finding.title)}</li>"
        yield "</ul>"

"""`rankscope chakra`: looks into Chakra traces, judges them, and turns them into JSON lines or graphs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.progress import Progress
from rankscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from rankscope.analyze.chakra.verdict import Problem, Replay, RuleCheck, Verdict
    from rankscope.model.chakra import ChakraNode, ChakraStream

ACTIONS = ("validate", "show", "to-json", "to-dot")
DEFAULT_SHOWN = 10
# Graphviz takes minutes for more.
MANY_DRAWN = 3000
# Options that only some actions know.
_ONLY_WITH = {
    "node": ("show",),
    "limit": ("show", "to-json", "to-dot"),
    "output": ("to-json", "to-dot"),
    "force": ("to-json", "to-dot"),
    "json": ("validate", "show"),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="validate, show, to-json or to-dot")
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help=".et files, a folder, or PREFIX for all PREFIX.<rank>.et"
    )
    parser.add_argument("--node", type=_whole_number, metavar="ID", help="show this node in full")
    parser.add_argument("--limit", type=_whole_number, metavar="N", help="only the first N nodes; 0 means all")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE; to-dot writes GraphML if it ends in .graphml"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    output.add_output_options(parser)


def _whole_number(text: str) -> int:
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def run(args: Namespace) -> int:
    from rankscope.read.chakra_file import find_chakra_files

    for option, actions in _ONLY_WITH.items():
        if getattr(args, option) not in (None, False) and args.action not in actions:
            raise UsageError(
                f"{args.action} has no option --{option}", f"--{option} belongs to {' and '.join(actions)}"
            )
    paths = find_chakra_files(args.paths)
    if args.action == "validate":
        return _validate(paths, args)
    if args.action == "show":
        return _show(paths, args)
    if len(paths) > 1:
        raise UsageError(f"{args.action} takes one file, not {len(paths)}", f"for example {paths[0]}")
    return _convert(paths[0], args)


# Show


def _show(paths: list[str], args: Namespace) -> int:
    from rankscope.read.chakra_file import stream_chakra

    streams = (stream_chakra(path) for path in paths)
    if args.node is not None:
        return _show_node(streams, args)
    from rankscope.render.chakra_views import summarize, summary_lines, summary_record

    n_first = DEFAULT_SHOWN if args.limit is None else args.limit or sys.maxsize
    if args.json:
        records = [summary_record(summarize(stream, n_first)) for stream in streams]
        output.print_json(records[0] if len(records) == 1 else records)
        return 0
    for stream in streams:
        output.print_lines(summary_lines(summarize(stream, n_first), output.text_width(sys.stdout)))
        output.print_lines([""])
    output.print_lines([f"Next: rankscope chakra validate {_quoted(args.paths)}"])
    return 0


def _show_node(streams: Iterator[ChakraStream], args: Namespace) -> int:
    from rankscope.render.chakra_views import node_lines, node_record

    nodes: dict[str, ChakraNode] = {}
    for stream in streams:
        node = next((node for node in stream.nodes if node.id == args.node), None)
        if node is not None:
            nodes[stream.path] = node
    if not nodes:
        raise InputError(
            f"no node {args.node} in {' '.join(args.paths)}", f"rankscope chakra show {_quoted(args.paths)} lists ids"
        )
    if args.json:
        records = [{"path": path, **node_record(node)} for path, node in nodes.items()]
        output.print_json(records[0] if len(records) == 1 else records)
        return 0
    from rankscope.render.escape import escape

    for path, node in nodes.items():
        output.print_lines([f"{escape(path)}:", *node_lines(node)])
    return 0


# To JSON lines and graphs


def _convert(path: str, args: Namespace) -> int:
    from rankscope.read.chakra_file import stream_chakra
    from rankscope.render.chakra_graphs import dot_lines, graphml_lines
    from rankscope.render.chakra_views import Excerpt, json_lines

    if args.output:
        output.check_writable(args.output, args.force)
    excerpt = Excerpt(stream_chakra(path), args.limit or 0)
    if args.action == "to-json":
        lines = json_lines(excerpt)
    elif args.output and args.output.lower().endswith(".graphml"):
        lines = graphml_lines(excerpt)
    else:
        lines = dot_lines(excerpt)
    if args.output:
        output.write_file(args.output, lines, args.force)
    else:
        output.print_lines(lines)
    _say_extent(excerpt.n_passed, excerpt.is_cut, args)
    return 0


def _say_extent(n_nodes: int, is_cut: bool, args: Namespace) -> None:
    from rankscope.model.finding import count_noun

    if is_cut:
        output.tell(f"Stopped after {count_noun(n_nodes, 'node')}: the file has more, --limit 0 writes all")
    elif args.action == "to-dot" and n_nodes > MANY_DRAWN:
        output.tell(f"{n_nodes:,} nodes are more than most programs can lay out: see --limit")
    if args.output:
        output.tell(f"Wrote {count_noun(n_nodes, 'node')} to {args.output}")


# Validate


def _validate(paths: list[str], args: Namespace) -> int:
    from rankscope.analyze.chakra.validate import validate
    from rankscope.read.chakra_file import read_chakra

    with Progress() as progress:
        files = []
        for done, path in enumerate(paths):
            progress(done, len(paths), f"reading {path}")
            files.append(read_chakra(path))
        progress(len(paths), len(paths), "checking")
        verdict = validate(files)
    if args.json:
        import msgspec

        output.print_json(msgspec.to_builtins(verdict))
    else:
        output.print_lines(_verdict_lines(verdict, args))
    return 0 if verdict.valid else 1


def _verdict_lines(verdict: Verdict, args: Namespace) -> Iterator[str]:
    from rankscope.model.finding import count_noun
    from rankscope.render.escape import escape

    for rule in sorted(verdict.rules, key=lambda rule: rule.severity):  # errors first
        problems = [problem for problem in verdict.problems if problem.rule == rule.rule]
        if problems:
            yield from map(escape, _rule_lines(rule, problems))
            yield ""
    files = f"{count_noun(len(verdict.paths), 'file')}, {count_noun(verdict.n_nodes, 'node')}"
    wrong = f"{count_noun(verdict.n_errors, 'error')}, {count_noun(verdict.n_warnings, 'warning')}"
    yield f"{'valid' if verdict.valid else 'not valid'}: {files}; {wrong}"
    n_ran = sum(rule.status == "ran" for rule in verdict.rules)
    yield f"  rules         {n_ran} checked" + (", these not:" if n_ran < len(verdict.rules) else "")
    for rule in verdict.rules:
        if rule.status != "ran":
            yield escape(f"    {rule.rule}: {rule.why}")
    yield from map(escape, _replay_lines(verdict.replay))
    for note in verdict.notes:
        yield escape(f"  = note: {note}")
    yield f"Next: {_next_command(verdict, args)}"


def _rule_lines(rule: RuleCheck, problems: list[Problem]) -> Iterator[str]:
    yield f"{rule.severity}[{rule.rule}] {rule.about}"
    for problem in problems:
        node = "" if problem.node is None else f", node {problem.node} {problem.name}".rstrip()
        yield f"  --> {problem.path}{node}"
        yield f"      {problem.message}"
    if rule.n_broken > len(problems):
        yield f"  ... {rule.n_broken - len(problems):,} more"
    for text in dict.fromkeys(problem.help for problem in problems if problem.help):
        yield f"   = fix: {text}"


def _replay_lines(replay: Replay | None) -> Iterator[str]:
    from rankscope.model.finding import format_duration

    if replay is None:
        yield "  replay        not possible"
        return
    ratio = f", ratio {replay.ratio:.3f}" if replay.ratio is not None else ""
    measured = f"measured {format_duration(replay.measured_ns)}" if replay.measured_ns else "no times were measured"
    extent = f"{replay.n_executed:,} of {replay.n_nodes:,} nodes ran"
    yield f"  replay        {extent}; simulated {format_duration(replay.simulated_ns)}, {measured}{ratio}"
    if len(replay.ranks) > 1:
        for rank in replay.ranks:
            who = f"rank {rank.rank}" if rank.rank is not None else rank.path
            share = f", ratio {rank.ratio:.3f}" if rank.ratio is not None else ""
            spans = f"simulated {format_duration(rank.simulated_ns)}, measured {format_duration(rank.measured_ns)}"
            yield f"    {who}: {spans}{share}"
    for stuck in replay.deadlock.nodes if replay.deadlock else ():
        who = f"rank {stuck.rank}" if stuck.rank is not None else stuck.path
        yield f"    stuck: node {stuck.node} {stuck.name} of {who} waits for {stuck.waits_for}"


def _next_command(verdict: Verdict, args: Namespace) -> str:
    """A look at the first node that breaks a rule, else at the whole."""
    first = next((problem for problem in verdict.problems if problem.node is not None), None)
    if first is None:
        return f"rankscope chakra show {_quoted(args.paths)}"
    return f"rankscope chakra show {_quoted([first.path])} --node {first.node}"


def _quoted(paths: list[str]) -> str:
    import shlex

    return " ".join(map(shlex.quote, paths))

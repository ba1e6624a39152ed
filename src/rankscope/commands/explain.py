"""`rankscope explain`: the manual page of a rule, which is the rule's own docstring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.commands import output

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from rankscope.analyze import Rule

SECTIONS = ("What it means", "Why it happens", "What to do", "What could fool it")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", nargs="?", help="code or name of a rule; without it, lists all rules")
    output.add_output_options(parser)


def run(args: Namespace) -> int:
    from rankscope.analyze import RULES, find_rule

    if args.code is None:
        _show_all(sorted(RULES.values(), key=lambda rule: rule.code), args)
    else:
        _show_one(find_rule(args.code.replace("_", "-")), args)
    return 0


def _show_one(rule: Rule, args: Namespace) -> None:
    if args.json:
        output.print_json(_as_record(rule))
    else:
        output.print_lines(_page(rule, _bold(args)))


def _show_all(rules: list[Rule], args: Namespace) -> None:
    if args.json:
        output.print_json([_as_record(rule) for rule in rules])
        return
    bold = _bold(args)
    n_name = max((len(rule.name) for rule in rules), default=0)
    output.print_lines(f"{bold(rule.code)}  {rule.name:{n_name}}  {rule.summary}" for rule in rules)
    if rules:
        output.print_lines(["", f"Next: {bold(f'rankscope explain {rules[0].code}')}"])


def _page(rule: Rule, bold: Callable[[str], str]) -> Iterator[str]:
    yield bold(f"{rule.code} {rule.name}")
    yield ""
    for line in rule.doc.splitlines():
        heading = next((section for section in SECTIONS if line.startswith(section)), "")
        yield bold(heading) + line[len(heading) :] if heading else line


def _as_record(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "rule": rule.name,
        "needs": list(rule.needs),
        "summary": rule.summary,
        "text": rule.doc,
    }


def _bold(args: Namespace) -> Callable[[str], str]:
    import sys

    colored = output.wants_color(args.color, sys.stdout)
    return (lambda text: f"\x1b[1m{text}\x1b[0m") if colored else str

"""`rankscope completion`: shell completion, generated from the same tree that parses the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from rankscope.commands import output

EPILOG = """\
  bash:  source <(rankscope completion bash)        in ~/.bashrc
  zsh:   source <(rankscope completion zsh)         in ~/.zshrc, after compinit
  fish:  rankscope completion fish | source         in ~/.config/fish/config.fish"""


class Flag(NamedTuple):
    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


class Shape(NamedTuple):
    """What can follow a command: its flags and the words its arguments may be. Files are always possible."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"{parser.epilog}\n\nto keep it:\n{EPILOG}"
    parser.add_argument("shell", choices=tuple(WRITERS), help="your shell")
    parser.add_argument("--json", action="store_true", help="print the script as JSON")


def run(args: argparse.Namespace) -> int:
    from rankscope.cli import build_parser

    script = "\n".join(WRITERS[args.shell](command_shapes(build_parser())))
    if args.json:
        output.print_json({"shell": args.shell, "script": script})
    else:
        output.print_lines([script])
    return 0


def command_shapes(parser: argparse.ArgumentParser) -> list[Shape]:
    """One shape per command, after one for the program itself."""
    program = _shape(parser, "", "")
    subcommands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in subcommands._choices_actions}
    return [program, *(_shape(child, name, helps[name]) for name, child in subcommands.choices.items())]


def _shape(parser: argparse.ArgumentParser, name: str, help_text: str) -> Shape:
    formatter = parser._get_formatter()  # it knows how %(default)s and %% read
    flags = []
    words: tuple[str, ...] = ()
    for action in parser._actions:
        choices = tuple(map(str, action.choices)) if action.choices is not None else ()
        if action.option_strings and action.help != argparse.SUPPRESS:
            summary = formatter._expand_help(action) if action.help else ""
            flags.append(Flag(tuple(action.option_strings), summary, action.nargs != 0, choices))
        elif not action.option_strings:
            words += choices
    return Shape(name, help_text, tuple(flags), words)


def _bash(shapes: list[Shape]) -> Iterator[str]:
    yield "_rankscope() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" at words=""'
    # Bash splits --color=never into three words.
    yield '    [[ "$word" == "=" ]] && word=""'
    yield '    [[ "$before" == "=" ]] && before="${COMP_WORDS[COMP_CWORD-2]}"'
    yield "    for ((at = 1; at < COMP_CWORD; at++)); do"
    yield '        case "${COMP_WORDS[at]}" in -*) ;; *) command="${COMP_WORDS[at]}"; break ;; esac'
    yield "    done"
    yield '    case "$command" in'
    for shape in shapes[1:]:
        yield from _bash_case(shape, shape.name)
    # A path in the place of the command means diagnose, and so do its options.
    default = next(shape for shape in shapes if shape.name == "diagnose")
    yield from _bash_case(Shape("", "", (*default.flags, *shapes[0].flags), shapes[0].words), '""')
    yield from _bash_case(default, "*")
    yield "    esac"
    # With no match of our own, bash completes file names (-o default).
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -o bashdefault -F _rankscope rankscope"


def _bash_case(shape: Shape, pattern: str) -> Iterator[str]:
    yield f"        {pattern})"
    yield '            case "$before" in'
    for flag in shape.flags:
        if flag.takes_value:
            yield f"                {'|'.join(flag.names)}) words={_quoted(' '.join(flag.choices))} ;;"
    options = " ".join(name for flag in shape.flags for name in flag.names)
    yield "                *)"
    yield f'                    case "$word" in -*) words={_quoted(options)} ;;'
    yield f"                    *) words={_quoted(' '.join(shape.words))} ;; esac ;;"
    yield "            esac ;;"


def _zsh(shapes: list[Shape]) -> Iterator[str]:
    default = next(shape for shape in shapes if shape.name == "diagnose")
    yield "#compdef rankscope"
    yield "_rankscope() {"
    yield "    local -a commands"
    yield "    commands=("
    for shape in shapes[1:]:
        yield f"        {_quoted(f'{shape.name}:{shape.help}')}"
    yield "    )"
    yield "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then"
    yield "        _describe -t commands command commands"
    yield "        _files"
    yield "        return"
    yield "    fi"
    yield '    case "$words[2]" in'
    for shape in shapes[1:]:
        yield f"        {shape.name})"
        yield "            shift words; (( CURRENT-- ))"
        yield f"            _arguments {_zsh_specs(shape)} ;;"
    yield f"        *) _arguments {_zsh_specs(default)} ;;"
    yield "    esac"
    yield "}"
    # Works both when sourced and when installed as a file on fpath, where zsh calls the function itself.
    yield 'if [ "$funcstack[1]" = "_rankscope" ]; then _rankscope "$@"; else compdef _rankscope rankscope; fi'


def _zsh_specs(shape: Shape) -> str:
    specs = []
    for flag in shape.flags:
        summary = flag.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
        value = f":value:{_zsh_values(flag.choices)}" if flag.takes_value else ""
        specs += [_quoted(f"{name}[{summary}]{value}") for name in flag.names]
    return " ".join([*specs, _quoted(f"*:argument:{_zsh_values(shape.words)}")])


def _zsh_values(choices: tuple[str, ...]) -> str:
    return f"({' '.join(choices)})" if choices else "_files"


def _fish(shapes: list[Shape]) -> Iterator[str]:
    program, *commands = shapes
    for shape in commands:
        yield f"complete -c rankscope -n __fish_use_subcommand -a {shape.name} -d {_fish_quoted(shape.help)}"
    for flag in program.flags:
        yield f"complete -c rankscope -n __fish_use_subcommand {_fish_flag(flag)}"
    for shape in commands:
        seen = f"__fish_seen_subcommand_from {shape.name}"
        if shape.name == "diagnose":  # also when a path stands in the place of the command
            seen = f"not __fish_seen_subcommand_from {' '.join(other.name for other in commands if other != shape)}"
        for flag in shape.flags:
            yield f"complete -c rankscope -n '{seen}' {_fish_flag(flag)}"
        if shape.words:
            yield f"complete -c rankscope -n '{seen}' -f -a {_fish_quoted(' '.join(shape.words))}"


def _fish_flag(flag: Flag) -> str:
    parts = []
    for name in flag.names:
        bare = name.lstrip("-")
        kind = "-l" if name.startswith("--") else "-s" if len(bare) == 1 else "-o"
        parts.append(f"{kind} {bare}")
    if flag.takes_value:
        parts.append("-r")
    if flag.choices:
        parts.append(f"-f -a {_fish_quoted(' '.join(flag.choices))}")
    return " ".join([*parts, f"-d {_fish_quoted(flag.help)}"])


def _quoted(text: str) -> str:
    """A word for bash and zsh, quoted."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

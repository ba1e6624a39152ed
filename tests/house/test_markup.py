"""Markup is made of our own literals; text gets into it only by being escaped. mypy checks that, and these tests do."""

from __future__ import annotations

import ast

from source_tree import SourceFile, on_every_file, on_files

# Where a string is declared to be markup, and why it is.
DECLARED = {
    "render/html.py": "escapes, and puts our own styles and scripts into pages",
    "render/cards.py": "prose() marks code and addresses in text that is escaped",
    "render/notebook.py": "our own styles",
    "render/page/redaction.py": "takes names out of markup",
    "commands/compile.py": "the user's own header",
}


def calls_of(source: SourceFile, name: str) -> list[ast.Call]:
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


@on_every_file
def test_templates_are_literals(source: SourceFile) -> None:
    constants = {
        target.id
        for node in source.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    templates = [call.args[0] for call in calls_of(source, "markup")]
    assert [
        ast.unparse(template)
        for template in templates
        if not isinstance(template, ast.Constant) and not (isinstance(template, ast.Name) and template.id in constants)
    ] == []


@on_files(lambda source: source.name not in DECLARED)
def test_strings_are_declared_to_be_markup_in_few_places(source: SourceFile) -> None:
    assert [call.lineno for call in calls_of(source, "Html")] == []

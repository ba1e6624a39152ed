"""One file per output: a renderer turns a report into lines, and the commands decide where these go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from rankscope.model.finding import Report

# The key is the renderer's name and the extension of the files it writes. Imported on use: most runs need only one.
RENDERERS: dict[str, str] = {
    "txt": "rankscope.render.terminal:render",
    "json": "rankscope.render.as_json:render",
}


class Options(NamedTuple):
    """How to show a report. A renderer ignores the options that it does not support.

    Not a dataclass: `rankscope --help` loads this module, and importing dataclasses would double its time.
    """

    color: bool = False
    width: int | None = None  # None: never wrap or shorten, because a program or a file reads the lines
    show_all: bool = False
    verbose: bool = False  # what was read and checked in detail, notes in full
    quiet: bool = False  # titles and fixes only
    source: bool = True
    base: str = ""  # files below this folder are shown relative to it, relative ones are looked up in it
    code_folder: str = ""  # the user's code, if it is elsewhere: the renderer finds it
    next_command: str = ""
    page_command: str = ""  # what writes the same answer as a page


Renderer = Callable[["Report", Options], Iterator[str]]


def load_renderer(name: str) -> Renderer:
    module, function = RENDERERS[name].split(":")
    return cast(Renderer, getattr(import_module(module), function))

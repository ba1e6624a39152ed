"""One file per output: a renderer turns a report into lines, and the commands decide where these go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from rankscope.model.parts import Catalogue, Entry, load_module, other_modules, own_modules

if TYPE_CHECKING:
    from rankscope.model.finding import Report


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
    typed_paths: str = ""  # the capture, as one would type it in a command: the renderer finds it
    next_command: str = ""
    page_command: str = ""  # what writes the same answer as a page


Renderer = Callable[["Report", Options], Iterator[str]]


def _found_renderers() -> Iterator[Entry[str]]:
    """The modules that have the EXTENSION of the files they write, and a function `render`. Imported on use."""
    for module in (*own_modules("render"), *other_modules()):
        if "EXTENSION" in module.names:
            yield module.names["EXTENSION"], module.name, module.name


RENDERERS: Catalogue[str] = Catalogue(_found_renderers)


def load_renderer(name: str) -> Renderer:
    return cast(Renderer, load_module(RENDERERS[name]).render)

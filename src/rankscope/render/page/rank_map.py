"""The map: one row per rank, one column per collective, by state, lateness or duration; drawn by rank_map.js."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rankscope.model.finding import count_noun, finding_anchors
from rankscope.model.tables import Array, Trace
from rankscope.render.html import NOTHING, Html, joined, markup
from rankscope.render.listing import fold
from rankscope.render.page.blocks import Block
from rankscope.render.page.contents import Contents, View, absent, view
from rankscope.render.page.rank_map_calls import CallPool, clipped
from rankscope.render.page.rank_map_choices import Choice, choices, first_choice
from rankscope.render.page.rank_map_data import Matrix, Thinned, block_of, estimated_size, kept_columns, thinnings
from rankscope.render.page.rank_map_profiler import profiled_matrix
from rankscope.render.page.rank_map_recorder import recorded_matrix
from rankscope.render.page.rank_map_table import state_words, worst_rows, worst_tables

ANCHOR, TITLE = "map", "Map"
SHARE = 0.45  # of the page
MIN_ROOM = 20_000  # a map that gets less would show nothing
MAX_CHOICES = 200
MAX_OPEN_TABLES = 8  # tables of further groups come when they are asked for
MAX_HOSTS_LISTED = 500
_COMMAND = "rankscope record -o traces/ -- torchrun --nproc-per-node 8 train.py"


@view("rank map", place=10)
def rank_map_view(contents: Contents) -> View:
    all_choices = choices(contents.trace)
    if not all_choices:
        said = "This capture has no Flight Recorder dumps and no profiler traces with collectives."
        return absent(ANCHOR, TITLE, said, _COMMAND)
    first = first_choice(all_choices, contents.report.findings)
    # What is most likely to be looked at gets its room first.
    all_choices.sort(key=lambda choice: (choice is not first, choice.is_profiled, -choice.n_unwell, -choice.n_ranks))
    maps = _Maps(contents, CallPool(contents.folders), _hosts(contents.trace))
    shown = maps.add_all(all_choices)
    return View(ANCHOR, TITLE, _tools(shown, maps.hosts) + _canvas() + joined(maps.tables))


def _hosts(trace: Trace) -> dict[int, str]:
    hosts: dict[int, str] = {}
    for name in ("files", "profiles", "ranks"):
        table = trace.table(name)
        named = zip(table.array("rank").tolist(), table.text("host").tolist(), strict=True)
        hosts.update({rank: clipped(host) for rank, host in named if host})
    return hosts


@dataclass
class _Maps:
    contents: Contents
    pool: CallPool
    hosts: dict[int, str]

    def __post_init__(self) -> None:
        trace = self.contents.trace
        self.tables: list[Html] = []
        self._recorded = self.pool.add_recorded(trace)
        self._profiled: Array | None = None
        self._room = self.contents.room(SHARE)

    def matrix(self, choice: Choice) -> Matrix:
        trace = self.contents.trace
        if not choice.is_profiled:
            return recorded_matrix(trace, choice, self._recorded, self.pool.stack_of)
        assert self._profiled is not None
        return profiled_matrix(trace, choice, self._profiled)

    def add_all(self, all_choices: Sequence[Choice]) -> list[Choice]:
        index = [
            {"block": each.block, "noun": each.noun, "groups": [*map(each.key_of, each.groups)]}
            for each in all_choices[:MAX_CHOICES]
        ]
        if any(choice.is_profiled for choice in all_choices):
            self._profiled = self.pool.add_profiled(self.contents.trace.table("comm_matches"))
        shown: list[Choice] = []
        self._room -= self.contents.blocks.add("map-calls", lambda: Block({**self.pool.about(), "choices": index}))
        for choice in all_choices[:MAX_CHOICES]:
            if shown and self._room < MIN_ROOM:
                break
            self._add(choice, is_first=not shown)
            shown.append(choice)
        if len(shown) < len(all_choices):
            left_out = sum(len(choice.groups) for choice in all_choices[len(shown) :])
            self.contents.remarks.append(
                f"The map leaves out {count_noun(left_out, 'group')}, starting with those without problems."
            )
        return shown

    def _add(self, choice: Choice, is_first: bool) -> None:
        about = {**choice.about(), "title": choice.title, "states": state_words(choice), "marks": self._marks(choice)}
        if self.contents.options.is_served:
            self.contents.blocks.add(choice.block, lambda: self._block(choice, self.matrix(choice), about))
            if is_first:
                self._add_tables(choice, self.matrix(choice))
            return
        matrix = self.matrix(choice)
        thinned = self._fitted(choice, matrix, about)
        if thinned.n_merged > 1:
            self.contents.remarks.append(
                f"The map of {choice.title} shows up to {count_noun(thinned.n_merged, choice.noun)} per column,"
                " and colors it by the worst one; the newest and those around findings have their own columns."
            )
        elif thinned.is_coarse:
            self.contents.remarks.append(
                f"Times on the map of {choice.title} are rounded: far from any problem, short times look the same."
            )
        self._add_tables(choice, matrix)

    def _add_tables(self, choice: Choice, matrix: Matrix) -> None:
        tables = worst_tables(self.contents, choice, matrix, self.pool, self.hosts)
        if self.tables:
            later = self.contents.later if len(self.tables) > MAX_OPEN_TABLES else None
            tables = fold(f"Worst in {choice.title}", tables, later=later)
        self.tables.append(tables)

    def _fitted(self, choice: Choice, matrix: Matrix, about: dict[str, Any]) -> Thinned:
        blocks, thinned = self.contents.blocks, Thinned(matrix, False, 1)
        columns = [matrix.columns_of(mark["seq"], mark["rank"]) for mark in about["marks"] if mark["seq"] is not None]
        kept = kept_columns(matrix, np.concatenate([*columns, np.empty(0, np.int64)]).astype(np.int64))
        worst_first = worst_rows(matrix, choice, self.contents.report.findings)
        for thinned in thinnings(matrix, kept):
            blocks.drop(choice.block)
            make = partial(block_of, thinned.matrix, self.hosts, worst_first, about)
            size = estimated_size(thinned.matrix)
            if size <= self._room:
                size = blocks.add(choice.block, make)
            if size <= self._room:
                break
        else:  # the smallest there is, however small the page has to be
            size = blocks.add(choice.block, make)
        self._room -= size
        return thinned

    def _block(self, choice: Choice, matrix: Matrix, about: dict[str, Any]) -> Block:
        return block_of(matrix, self.hosts, worst_rows(matrix, choice, self.contents.report.findings), about)

    def _marks(self, choice: Choice) -> list[dict[str, Any]]:
        """Where findings point to, for the script to mark."""
        findings = self.contents.report.findings
        marks = []
        for anchor, finding in zip(finding_anchors(findings), findings, strict=True):
            if finding.group is None or not choice.has(finding.group) or finding.severity == "info":
                continue
            call = finding.collective
            if call and call.p2p != (choice.noun == "transfer"):
                continue
            seq = call.seq if call and not call.p2p else None  # a finding counts transfers by rank, the map by pair
            marks += [{"rank": rank, "seq": seq, "anchor": anchor} for rank in finding.ranks[:64] or (-1,)]
        return marks


def _tools(shown: Sequence[Choice], hosts: dict[int, str]) -> Html:
    """Without a script there is nothing to choose: rank_map.js shows them."""
    options = joined(markup('<option value="{}">{}</option>', choice.block, choice.title) for choice in shown)
    listed = sorted(set(hosts.values()))[:MAX_HOSTS_LISTED]
    known = joined(markup('<option value="{}"></option>', host) for host in listed)
    host = (
        markup(
            '<label>Host <input data-map="host" list="map-hosts" placeholder="all" size="12"></label>'
            '<datalist id="map-hosts">{}</datalist>',
            known,
        )
        if len(listed) > 1
        else NOTHING
    )
    return markup(
        "<noscript><p>The map needs JavaScript; the tables below do not.</p></noscript>"
        '<p class="map-off faint" role="status" hidden></p>'
        '<div class="map-tools" hidden>'
        '<label>Groups <select data-map="choice">{}</select></label>'
        '<label hidden>Group <select data-map="group"></select></label>'
        '<label>Color <select data-map="layer"><option value="state">state</option>'
        '<option value="late">lateness</option><option value="duration">duration</option></select></label>'
        '<label>Order <select data-map="order"><option value="rank">by rank</option>'
        '<option value="host">by host</option><option value="worst">worst first</option></select></label>'
        "{}"
        '<span class="map-zoom"><button type="button" data-map="in" aria-label="Zoom in" title="Zoom in (+)">+</button>'
        '<button type="button" data-map="out" aria-label="Zoom out" title="Zoom out (-)">−</button>'
        '<button type="button" data-map="fit" title="Show all (0)">Fit</button></span></div>',
        options,
        host,
    )


def _canvas() -> Html:
    return markup(
        '<p class="legend map-legend" hidden></p><div class="map-frame" hidden>'
        '<canvas tabindex="0" role="application" aria-roledescription="map" aria-describedby="map-keys"'
        ' aria-label="Map of ranks and collectives"></canvas><div class="map-tip" hidden></div></div>'
        '<p id="map-keys" class="map-keys faint" hidden>Zoom with the wheel or + and -, drag to move, use the arrow'
        " keys to go from cell to cell, press Enter or click to pin up to two cells, and Esc to unpin them.</p>"
        '<p class="map-said" aria-live="polite"></p><div class="map-pins"></div><ul class="map-hits" hidden></ul>'
    )

"""What several ranks compiled, side by side: who did the same as whom, and what each of them spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rankscope.model.finding import format_duration, ranks_phrase
from rankscope.render.compile_tree.page_data import Totals
from rankscope.render.compile_tree.ranks_words import WORDS, Place, alike_phrase, difference_phrase, steps_phrase
from rankscope.render.html import Html, joined, markup, text
from rankscope.render.listing import Column, Later, cell, row, table
from rankscope.render.rank_groups import Aspect, RankGroup

Groups = Mapping[Aspect, Sequence[RankGroup]]
_NUMBERS = ("Compilations", "Compile time", "Recompilations", "Graph breaks", "Cache hits", "Cache misses")


class RankTotals(NamedTuple):
    rank: int  # -1 when nothing tells it
    totals: Totals

    @property
    def name(self) -> str:
        return str(self.rank) if self.rank >= 0 else "unknown"


def apart_phrase(groups: Groups) -> str:
    """Which ranks are outside the largest group; none where no group is the largest. Empty when all did the same."""
    split = [same_aspect for same_aspect in groups.values() if len(same_aspect) > 1]
    decided = [same_aspect for same_aspect in split if len(same_aspect[0].ranks) > len(same_aspect[1].ranks)]
    odd = sorted({rank for same_aspect in decided for group in same_aspect[1:] for rank in group.ranks})
    if odd:
        return f"{ranks_phrase(odd)} behaved differently"
    return "the ranks differ" if split else ""


def difference(aspect: Aspect, groups: Sequence[RankGroup], n_ranks: int, place: Place, heading: str = "h3") -> Html:
    words = WORDS[aspect]
    title = markup("<{}>{}</{}>", heading, words.title, heading)
    if not groups:
        return markup('{}<p class="faint">Not compared. {}</p>', title, words.absent)
    if len(groups) == 1:
        return markup("{}<p>{}</p>", title, alike_phrase(aspect, groups[0], n_ranks))
    said = {group.letter: difference_phrase(aspect, groups, group, place) for group in groups[1:]}
    items = joined(
        markup(
            "<li><b>{}</b> {}, {}{}</li>",
            group.letter,
            ranks_phrase(group.ranks),
            steps_phrase(aspect, group),
            f": {said[group.letter]}" if group.letter in said else "",
        )
        for group in groups
    )
    return markup("{}<p>{}</p><ul>{}</ul>", title, words.harm, items)


def rank_table(
    later: Later, name: str, ranks: Sequence[RankTotals], groups: Groups, shown: Callable[[RankTotals], str], n: int
) -> Html:
    """`shown` gives a rank's name as HTML; `n` rows are shown at first."""
    split = [aspect for aspect, parts in groups.items() if len(parts) > 1]
    letters = {aspect: {rank: group.letter for group in groups[aspect] for rank in group.ranks} for aspect in split}
    columns = [Column("Rank", is_number=True), *(Column(number, is_number=True) for number in _NUMBERS)]
    columns += [Column(WORDS[aspect].short, help="Ranks with the same letter did the same.") for aspect in split]
    has_times = any(each.totals.total_ns for each in ranks)  # a text log tells none
    columns = [column for column in columns if has_times or column.title != "Compile time"]
    rows = []
    for each in ranks:
        parts = each.totals
        counts = (parts.n_recompilations, parts.n_breaks, parts.n_hits, parts.n_misses)
        cells = [
            cell(shown(each), each.rank),
            cell(f"{parts.n_compilations:,}", parts.n_compilations),
            *([cell(text(format_duration(parts.total_ns)), parts.total_ns)] if has_times else []),
            *(cell(f"{number:,}", number) for number in counts),
            *(cell(text(letters[aspect].get(each.rank, ""))) for aspect in split),
        ]
        rows.append(row(cells))
    return table(later, name, columns, rows, n)


def totals_tiles(ranks: Sequence[RankTotals]) -> list[tuple[str, str, str]]:
    """(number, noun, detail) for all ranks together."""
    totals = [each.totals for each in ranks]
    n_failed = sum(one.n_failed for one in totals)
    longest = max((one.total_ns for one in totals), default=0)
    return [
        (
            f"{sum(one.n_compilations for one in totals):,}",
            "compilations",
            f"{n_failed:,} failed" if n_failed else "",
        ),
        (
            format_duration(sum(one.total_ns for one in totals)),
            "compile time, all ranks",
            f"up to {format_duration(longest)}" if len(totals) > 1 else "",
        ),
        (f"{sum(one.n_recompilations for one in totals):,}", "recompilations", ""),
        (f"{sum(one.n_breaks for one in totals):,}", "graph breaks", ""),
        (
            f"{sum(one.n_hits for one in totals):,}",
            "cache hits",
            f"{sum(one.n_misses for one in totals):,} missed",
        ),
    ]

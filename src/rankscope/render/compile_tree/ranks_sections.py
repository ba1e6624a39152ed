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
    split = [own for own in groups.values() if len(own) > 1]
    decided = [own for own in split if len(own[0].ranks) > len(own[1].ranks)]
    odd = sorted({rank for own in decided for group in own[1:] for rank in group.ranks})
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
    split = [aspect for aspect, own in groups.items() if len(own) > 1]
    letters = {aspect: {rank: group.letter for group in groups[aspect] for rank in group.ranks} for aspect in split}
    columns = [Column("Rank", is_number=True), *(Column(number, is_number=True) for number in _NUMBERS)]
    columns += [Column(WORDS[aspect].short, help="Ranks with the same letter did the same.") for aspect in split]
    has_times = any(each.totals.total_ns for each in ranks)  # a text log tells none
    columns = [column for column in columns if has_times or column.title != "Compile time"]
    rows = []
    for each in ranks:
        own = each.totals
        counts = (own.n_recompilations, own.n_breaks, own.n_hits, own.n_misses)
        cells = [
            cell(shown(each), each.rank),
            cell(f"{own.n_compilations:,}", own.n_compilations),
            *([cell(text(format_duration(own.total_ns)), own.total_ns)] if has_times else []),
            *(cell(f"{number:,}", number) for number in counts),
            *(cell(text(letters[aspect].get(each.rank, ""))) for aspect in split),
        ]
        rows.append(row(cells))
    return table(later, name, columns, rows, n)


def totals_tiles(ranks: Sequence[RankTotals]) -> list[tuple[str, str, str]]:
    """(number, noun, detail) for all ranks together."""
    totals = [each.totals for each in ranks]
    n_failed = sum(own.n_failed for own in totals)
    longest = max((own.total_ns for own in totals), default=0)
    return [
        (
            f"{sum(own.n_compilations for own in totals):,}",
            "compilations",
            f"{n_failed:,} failed" if n_failed else "",
        ),
        (
            format_duration(sum(own.total_ns for own in totals)),
            "compile time, all ranks",
            f"up to {format_duration(longest)}" if len(totals) > 1 else "",
        ),
        (f"{sum(own.n_recompilations for own in totals):,}", "recompilations", ""),
        (f"{sum(own.n_breaks for own in totals):,}", "graph breaks", ""),
        (f"{sum(own.n_hits for own in totals):,}", "cache hits", f"{sum(own.n_misses for own in totals):,} missed"),
    ]

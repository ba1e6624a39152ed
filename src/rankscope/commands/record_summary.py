"""What a run has collected, in a few lines: one per kind of file, one per problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rankscope.collect.launching import folders, leftovers, startup
from rankscope.model.finding import count_noun, ranks_phrase

_SIGNS = {
    "optimizer": "optimizer steps",
    "backward": "backward passes",
    "forward": "calls of the model",
    "loader": "batches of the data loader",
    "collectives": "the period of the collectives",
}
_UNITS = ("bytes", "KB", "MB", "GB", "TB")
_NOBODY = (
    "nothing was collected: no process of the job that could be watched has imported torch",
    "  a Python with -E, -I or -S, or a script that overwrites PYTHONPATH, cannot be watched",
)


def summary_lines(folder: Path, with_problems: bool) -> Iterator[str]:
    parts = list(leftovers.all_parts(folder))
    yield from _failures(folder)
    if not parts:
        yield from _NOBODY
        return
    yield f"collected into {folder}"
    yield from _steps(parts)
    kinds: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    n_files: dict[str, int] = defaultdict(int)
    for part in parts:
        for record in part["got"]:
            kinds[record["what"]][part["rank"]] += record["n_bytes"]
            n_files[record["what"]] += 1
    width = max(map(len, kinds), default=0)
    for what, sizes in kinds.items():
        counts = f"{count_noun(len(sizes), 'rank')}, {count_noun(n_files[what], 'file')}"
        yield f"  {what.replace('_', ' '):{width}}  {counts}, {_size(sum(sizes.values()))}"
    n_places = sum(any(attempt.glob("manifest.d/*.json")) for attempt in folders.places(folder))
    if n_places > 1:
        yield f"  ranks were started {n_places} times: the later ones are in attempt_1, ..."
    if with_problems:
        yield from _problems(parts)


def _steps(parts: list[leftovers.Part]) -> Iterator[str]:
    """How many steps were seen, and from what; ranks that agree share one line."""
    ranks: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for part in parts:
        ranks[tuple(part.get("steps_by", {}).items())].append(part["rank"])
    for steps_by, where in ranks.items():
        if not steps_by:
            continue
        whom = "" if len(where) == len(parts) else f" on {ranks_phrase(sorted(where))}"
        counts = [f"{count_noun(n, 'step')}, counted by {_SIGNS.get(sign, sign)}" for sign, n in steps_by]
        yield f"  {', then '.join(counts)}{whom}"


def _problems(parts: list[leftovers.Part]) -> Iterator[str]:
    ranks: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for part in parts:
        for record in part["problems"]:
            ranks[record["what"], record["problem"], record["hint"]].add(part["rank"])
    n_ranks = len({part["rank"] for part in parts})
    for (what, problem, hint), where in ranks.items():
        whom = "" if len(where) == n_ranks else f" on {ranks_phrase(sorted(where))}"
        yield f"  problem with {what.replace('_', ' ')}{whom}: {problem}"
        if hint:
            yield f"    = fix: {hint}"


def _failures(folder: Path) -> Iterator[str]:
    """What failed before a process had become a rank."""
    for note in sorted(folder.glob(startup.FAILURE.format(pid="*"))):
        last = (note.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["?"])[-1]
        yield f"the collector could not start in process {note.stem.rpartition('_')[2]}: {last} (see {note.name})"


def _size(n_bytes: float) -> str:
    for unit in _UNITS:
        if n_bytes < 1000 or unit == _UNITS[-1]:
            break
        n_bytes /= 1000
    return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"

"""The search finds every line with a word, wherever the word begins, and no other line."""

from __future__ import annotations

import random

import pytest

from rankscope.read.job_log_scan import WORDS
from rankscope.read.job_log_search import WordSearch


def expected(block: bytes) -> list[int]:
    starts, position = [], 0
    for line in block.splitlines(keepends=True):
        if any(word in line for word in WORDS):
            starts.append(position)
        position += len(line)
    return starts


@pytest.mark.parametrize("n_words", [0, 1, 40, 3000])
def test_all_lines_with_a_word_and_no_others(n_words: int) -> None:
    draw = random.Random(n_words)
    lines = [b"step %d loss 2.31 gradient norm 1.02" % number for number in range(5000)]
    for _ in range(n_words):
        number = draw.randrange(len(lines))
        at = draw.randrange(len(lines[number]))
        lines[number] = lines[number][:at] + draw.choice(WORDS) + lines[number][at:]
    block = b"\n".join(lines) + draw.choice((b"", b"\n"))
    assert list(WordSearch(WORDS).lines(block)) == expected(block)


@pytest.mark.parametrize("block", [b"", b"E", b"Xid", b"\nXid", b"\n\nerror", b"rror" * 3, b"Killed\n" * 9])
def test_short_texts(block: bytes) -> None:
    assert list(WordSearch(WORDS).lines(block)) == expected(block)


def test_pairs_chosen_for_one_text_find_the_words_of_the_next() -> None:
    search = WordSearch(WORDS)
    list(search.lines(b"the error rate is low\n" * 100))
    block = b"step 1\nCUDA Error\nTraceback\nillegal\n"
    assert list(search.lines(block)) == expected(block)

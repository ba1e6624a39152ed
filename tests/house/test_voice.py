"""The program speaks as docs/style.md says: none of the words that we do not use is in a text that users see."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

import pytest
from source_tree import PACKAGE, SourceFile
from user_texts import UserText, literals_of, user_texts


class Avoided(NamedTuple):
    """A word or shape that we do not use, and what to write instead."""

    pattern: str
    instead: str


AVOIDED = (
    Avoided(r"\bstands?\b(?! for\b| out\b|-)", "is, sits, or the verb that says what it does"),
    Avoided(r"(?<!cannot )\b(?:tells?|told|telling)\b", "shows, says, reports"),
    Avoided(r"\bthe most of\b", "most of"),
    Avoided(r"\bof which\b", "a second sentence"),
    Avoided(r"\beverybody\b", "every rank, all ranks"),
    Avoided(r"\bwhoever\b", "the rank that, anyone who"),
    Avoided(r"\bits (?:1|\{\}) peers?\b", "the rank by its number, or 'its peer' and 'its 3 peers' through one helper"),
    Avoided(r"\bamong 1\b", "in this file"),
    Avoided(
        r"\b1 (?:rank|peer|file|call|frame|group|host|collective|finding|problem|kernel|line|process|dump)s\b",
        "the singular",
    ),
    Avoided(r"(?:[\d}%]|\b(?:ns|us|ms|s|min|bytes|once|twice|times|lost|spent)) a step\b", "per step"),
    Avoided(r"\bwent on\b", "was running, continued"),
    Avoided(r"\bsome minutes\b", "a few minutes"),
    Avoided(
        r"\b(?:come|comes|came|coming) to "
        r"(?:\{\}|(?:a|an|the|its|this|that)(?: \w+)? (?:call|collective)s?\b|(?:the )?all_\w+)",
        "reach, join",
    ),
    Avoided(r"\bsomebody\b", "who it is, you, or the passive"),
    Avoided(r"\bwithout a word\b", "silently, without a message"),
    Avoided(r"\bended by (?:itself|themselves)\b", "exited, finished"),
    Avoided(r"\bmade good\b", "fixed, made up for"),
    Avoided(r"\bso many (?:of|calls|ranks|steps|rounds|bytes|mismatches)\b", "this many"),
    Avoided(r"\b(?:is|are|was|were) no consequence\b", "is not a consequence"),
    Avoided(r"\bbrought an?\b", "passed a tensor, caused"),
    Avoided(r"\btime-outs?\b", "timeout"),
    Avoided(r"\bset-up\b", "setup"),
    Avoided(r"\blook-ups?\b", "lookup"),
    Avoided(r"\bdear(?:er|est)\b", "more expensive, most expensive"),
    Avoided(r"\banew\b", "again"),
    Avoided(r"\bat hand\b", "available, readable"),
    Avoided(r"\bso far as\b", "as far as, if"),
    Avoided(r"\bof (?:its|their) own\b", "its own, or nothing"),
    Avoided(r"\bthere (?:is|are|was|were) none\b", "no graph breaks in this log"),
    Avoided(r"\blogs? of torch\.compile\b", "torch.compile logs"),
    Avoided(r"\btime of the (?:host|device)\b", "host time, device time"),
    Avoided(r"\bcompile[sd]? again\b", "recompiles"),
    Avoided(r"\bverdict is (?:likely|possible), not certain\b", "the certainty beside the severity"),
    Avoided(r"\bcan not\b", "cannot"),
    Avoided(r"\bsomething else than\b", "something other than, something different from"),
    Avoided(r"\bwho of\b", "which of"),
    Avoided(r"\bare waited for\b", "the others wait for it"),
    Avoided(r"\bcosts? only itself\b", "affects nothing else"),
    Avoided(r"\bfor the purpose\b", "for this, or nothing"),
    Avoided(r"[\d}] %(?![\w\d(]| [\d(])", "the percent sign right after the number: 41%"),
    Avoided(
        # Public names, which never change: utilisation, device_utilisation, dimension-specialised.
        r"\b(?!utilisation|device_utilisation|specialised)\w*(?:colour|behaviour|honour|neighbour|favour|(?:optim|recogn|special|serial|initial|normal|summar|organ|"
        r"synchron|util|minim|maxim|visual|general)is(?:e[sd]?|ing|ation)|cancell(?:ed|ing)|labelled|catalogue|centre)\b",
        "US spelling",
    ),
)


class Allowed(NamedTuple):
    """One text that may hold an avoided word, and why."""

    path: str
    text: str  # part of the text that is allowed
    why: str


ALLOWED = (Allowed("docs/style.md", "", "it quotes what we do not write"),)


class Offense(NamedTuple):
    n_lines_before: int  # within the text
    words: str
    instead: str


def offenses(text: str) -> list[Offense]:
    return [
        Offense(text.count("\n", 0, match.start()), match.group(), avoided.instead)
        for avoided in AVOIDED
        for match in re.finditer(avoided.pattern, text, re.IGNORECASE)
    ]


def is_allowed(each: UserText) -> bool:
    return any(each.path == allowed.path and allowed.text in each.text for allowed in ALLOWED)


def test_texts_use_none_of_the_words_we_avoid() -> None:
    checked = [each for each in user_texts() if not is_allowed(each)]
    lines = [
        f"{each.path}:{each.line + offense.n_lines_before}: {offense.words!r}: write {offense.instead}"
        for each in checked
        for offense in offenses(each.text)
    ]
    assert not lines, "see docs/style.md\n" + "\n".join(lines)


def test_every_kind_of_text_is_collected() -> None:
    by_path = {each.path for each in user_texts()}
    expected = {"README.md", "docs/style.md", "src/rankscope/cli.py", "src/rankscope/model/finding.py"}
    assert expected <= by_path
    assert any(path.endswith(".js") for path in by_path)
    texts = " ".join(each.text for each in user_texts() if each.path.startswith("src/rankscope/analyze/"))
    assert "What could fool it:" in texts  # manual pages of rules


def test_exceptions_are_still_needed() -> None:
    """An exception that nothing needs any more would hide the next offense."""
    for allowed in ALLOWED:
        texts = [each.text for each in user_texts() if each.path == allowed.path and allowed.text in each.text]
        assert any(map(offenses, texts)), allowed


@pytest.mark.parametrize(
    "before",
    [
        "it stands in communication 2 ms a step",
        "Where everybody stands",
        "the most of it is time of the host",
        "Each moment counts once, for the first in this order that went on",
        "the text tells no graph break",
        "no trace among 1 files",
        "where its 1 peer passed [1024]",
        "f{} lost {} a step",
        "the dearest kernels",
        "1 ranks wait",
        "a colour that is optimised",
        "it waits 41 % of the step",
        "who of them came last; the ones that are waited for",
        "it compiled something else than its peers",
        "it did not come to the collective; this is no consequence of another failure",
        "all cases, some minutes; list at most so many mismatches",
        "rank 3 brought a tensor of [7]; a time-out in the set-up",
        "rank 3 never came to the last collective",
        "{} ranks come to {} late",
        "somebody asked for a dump",
        "the process is gone without a word",
        "rank 3 ended by itself",
        "the lost time is made good",
    ],
)
def test_what_we_do_not_write_is_caught(before: str) -> None:
    assert offenses(before)


@pytest.mark.parametrize(
    "after",
    [
        "it spends 2 ms per step in communication",
        "Where each rank is now",
        "most of it is host time",
        "no graph breaks in this log",
        "where rank 0 passed [1024]",
        "DP stands for data parallel; ranks that stand out",
        "cannot tell the format from the extension",
        "skip a step; run it as a stand-in",
        "11 ranks are waiting",
        "it waits 41% of the step; a row is rank % 8",
        "the job came to a halt; the losses come to 3 s per step",
    ],
)
def test_what_we_write_is_not(after: str) -> None:
    assert offenses(after) == []


def test_only_texts_for_users_are_collected() -> None:
    code = '''
"""Nobody but us reads what the module tells."""
def helper():
    """Tells us."""
    sql = "select told from tells where 1"
    return f"Where {sql} tells", "told"

@rule("X999", "sample")
def shown():
    """Printed by explain."""
'''
    source = SourceFile(PACKAGE / "sample.py", code, ast.parse(code))
    assert {text for _, text in literals_of(source)} == {"Where {} tells", "Printed by explain."}

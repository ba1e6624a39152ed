from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.model.finding import Evidence, Finding, Report
from rankscope.render import RENDERERS, Options, load_renderer
from rankscope.render.as_json import dumps, render, schema
from render import sample
from render.snapshot import check_snapshot


def parsed(report: Report, **options: Any) -> Any:
    return json.loads("\n".join(render(report, Options(**options))))


def test_snapshot() -> None:
    check_snapshot("many.json", "\n".join(render(sample.many(), Options())) + "\n")


def test_the_keys_are_the_documented_ones() -> None:
    report = parsed(sample.hang())
    assert list(report) == ["schema", "capture", "findings", "checks", "effects"]
    assert report["schema"] == "rankscope.report/1"
    assert list(report["findings"][0]) == [
        "code",
        "rule",
        "severity",
        "certainty",
        "title",
        "ranks",
        "group",
        "collective",
        "location",
        "peer_location",
        "evidence",
        "help",
        "action",
        "action_hosts",
    ]
    assert report["findings"][0]["collective"] == {"seq": 48211, "op": "all_reduce", "p2p": False}
    assert report["findings"][0]["peer_location"]["line"] == 212


def test_what_is_absent_is_null() -> None:
    finding = parsed(sample.hang())["findings"][1]
    assert finding["group"] is finding["collective"] is finding["location"] is finding["peer_location"] is None


@pytest.mark.parametrize("show_all", [False, True])
def test_effects_are_always_printed(show_all: bool) -> None:
    assert [effect["ranks"] for effect in parsed(sample.hang(), show_all=show_all)["effects"]] == [[900]]
    assert parsed(sample.clean(), show_all=show_all)["effects"] == []


def test_the_json_reads_back_as_the_same_report() -> None:
    text = "\n".join(render(sample.hang(), Options(show_all=True)))
    assert msgspec.json.decode(text, type=Report) == sample.hang()


def test_hostile_text_stays_inside_its_string() -> None:
    text = "\n".join(render(sample.hostile(), Options()))
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text)["findings"][0]["help"].startswith("\x1b]0;owned")


def test_every_character_survives_as_an_escape() -> None:
    text = dumps({"a": "\x7f\x9b\u202e\u00fc\U0001f600"})
    assert text.isascii()
    assert "\x7f" not in text
    assert json.loads(text) == {"a": "\x7f\x9b\u202e\u00fc\U0001f600"}
    assert json.loads(dumps({"a": "\x1b\udc80"})) == {"a": "\x1b\\udc80"}, "a lone surrogate has no place in UTF-8"


def test_numbers_from_columns_are_plain_numbers() -> None:
    facts = {"rank": np.int32(3), "late_ns": np.arange(2)}
    finding = Finding(
        code="S201",
        rule="straggler",
        severity="warning",
        certainty="likely",
        title="late",
        evidence=Evidence(facts=facts),
    )
    assert parsed(sample.report(finding))["findings"][0]["evidence"]["facts"] == {"rank": 3, "late_ns": [0, 1]}


def test_what_has_no_json_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})


def test_schema_describes_the_report() -> None:
    described = schema()
    assert described["$ref"] == "#/$defs/Report"
    assert set(described["$defs"]["Report"]["required"]) == {"schema", "capture", "findings", "checks"}


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_every_renderer_renders(name: str) -> None:
    assert "op-mismatch" in "\n".join(load_renderer(name)(sample.clean(), Options(verbose=True)))

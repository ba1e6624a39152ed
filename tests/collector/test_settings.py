from __future__ import annotations

import dataclasses

import pytest

from rankscope.collect.settings import VARIABLE, Settings, from_environment


def test_settings_survive_the_way_through_the_environment() -> None:
    wanted = Settings(folder="/a b/ü", run_id="x", kineto=False, logs="+dynamo", stall_seconds=2.5, max_bytes=7)
    assert from_environment({VARIABLE: wanted.to_text()}) == wanted


def test_a_launcher_of_another_version_is_understood() -> None:
    text = Settings(folder="/x").to_text()[:-1] + ',"something_new":3}'
    assert Settings.from_text(text) == Settings(folder="/x")
    assert Settings.from_text('{"folder": "/x"}') == Settings(folder="/x")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", "null"])
def test_what_cannot_be_read_asks_for_nothing(text: str) -> None:
    assert from_environment({VARIABLE: text}) is None


def test_without_a_launcher_nothing_is_asked_for() -> None:
    assert from_environment({}) is None


def test_the_hook_can_see_nsys_without_parsing() -> None:
    for asked in (False, True):
        text = dataclasses.replace(Settings(folder="/x"), nsys=asked).to_text()
        assert ('"nsys":true' in text) == asked

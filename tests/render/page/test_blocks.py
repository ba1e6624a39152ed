"""Data for the page's scripts: packed so that a typed array can be laid over it."""

from __future__ import annotations

import base64
import json
import re
import zlib

import numpy as np

from rankscope.render.page.blocks import Block, Blocks, pack


def unpacked(packed: bytes) -> tuple[object, dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]]]:
    raw = zlib.decompress(packed)
    end = raw.index(b"\n") + 1
    head = json.loads(raw[:end])
    assert end % 8 == 0
    assert all(place["start"] % 8 == 0 for place in head["arrays"])
    arrays = {
        place["name"]: np.frombuffer(raw, place["type"], place["n"], end + place["start"]) for place in head["arrays"]
    }
    return head["meta"], arrays


def test_arrays_come_back_aligned_and_whole() -> None:
    arrays = {
        "state": np.arange(5, dtype=np.uint8),
        "time": np.array([1, -(2**60)], ">i8"),
        "none": np.empty(0, "i4"),
    }
    meta, back = unpacked(pack(Block({"text": "a\nb </script>"}, arrays)))
    assert meta == {"text": "a\nb </script>"}
    assert {name: array.tolist() for name, array in back.items()} == {
        "state": [0, 1, 2, 3, 4],
        "time": [1, -(2**60)],
        "none": [],
    }


def test_a_file_holds_its_blocks_and_a_server_keeps_them() -> None:
    made = []

    def make() -> Block:
        made.append(1)
        return Block("hello")

    served, inside = Blocks(is_served=True), Blocks()
    assert served.add("x", make) == 0
    assert made == []
    assert served.html("x") == '<script type="text/plain" data-block="x" data-from="data/x"></script>\n'
    n_bytes = inside.add("x", make)
    found = re.search(">([^<]*)<", inside.html("x"))
    assert found
    assert abs(len(found.group(1)) - n_bytes) < 4
    assert unpacked(base64.b64decode(found.group(1)))[0] == "hello"
    assert unpacked(served.get("x"))[0] == "hello"
    assert len(made) == 2  # once each, however often it is asked for


def test_meta_is_cleaned_before_it_is_packed() -> None:
    blocks = Blocks(clean=lambda meta: [each.upper() for each in meta])
    blocks.add("x", lambda: Block(["secret"]))
    assert unpacked(blocks.get("x"))[0] == ["SECRET"]

from __future__ import annotations

import gzip
import sys
import tracemalloc
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import BadFileError, InputError, UsageError
from rankscope.model.chakra import ATTRIBUTE_FIELDS, IO, Attribute, ChakraFile, ChakraNode
from rankscope.model.protobuf import encode_varint
from rankscope.read import chakra_messages
from rankscope.read.chakra_file import find_chakra_files, read_chakra, stream_chakra
from rankscope.render.chakra_file import write_graph
from read.mutating import mutations
from render import chakra_proto
from render.chakra_building import comparable, files, graph_of, quickly, small_nodes

METADATA = b"\x07\n\x050.0.4"


def write(path: Path, *nodes: bytes, metadata: bytes = METADATA) -> Path:
    path.write_bytes(metadata + b"".join(encode_varint(len(node)) + node for node in nodes))
    return path


def plain(attributes: dict[str, Attribute]) -> list[tuple[str, str, Any]]:
    return [(name, found.kind, comparable(found.value)) for name, found in attributes.items()]


def plain_nodes(nodes: list[ChakraNode]) -> list[tuple[Any, ...]]:
    return [
        (
            *(node.id, node.name, node.type, node.ctrl_deps, node.data_deps, node.start_us, node.duration_us),
            *(node.inputs, node.outputs, plain(node.attributes)),
        )
        for node in nodes
    ]


# Good files


@quickly
@given(file=files(), ending=st.sampled_from((".et", ".et.gz")))
def test_what_was_written_is_read_again(
    file: ChakraFile, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("written") / f"job.0{ending}"
    write_graph(graph_of(file.nodes, file.attributes), path)
    found = read_chakra(path)
    assert (found.path, found.version) == (str(path), file.version)
    assert plain(found.attributes) == plain(file.attributes)
    assert plain_nodes(found.nodes) == plain_nodes(file.nodes)


@pytest.mark.parametrize("kind", ATTRIBUTE_FIELDS)
def test_every_kind_that_protobuf_writes(kind: str, tmp_path: Path) -> None:
    scalar = kind.removesuffix("_list")
    values: dict[str, Any] = {"double": 0.1, "float": -2.5, "bool": True, "string": "é", "bytes": b"\xff\x00"}
    value = values.get(scalar, 1 << 31 if scalar[0] in "uf" else -300)
    listed = [value, value] if kind.endswith("_list") else value
    node = chakra_proto.Node(id=300, attr=[chakra_proto.attribute("x", kind, listed)])
    path = chakra_proto.serialize(tmp_path / "job.0.et", chakra_proto.GlobalMetadata(), node)
    (found,) = read_chakra(path).nodes
    assert found.attributes == {"x": Attribute(kind, listed)}
    assert type(found.attributes["x"].value) is type(listed)


def test_numbers_of_a_list_may_be_packed_or_not(tmp_path: Path) -> None:
    unpacked = b"\x20\x01\x20\x80\x02\x28\x07"  # ctrl_deps 1 and 256, data_deps 7
    both = b"\x22\x03\x01\x80\x02\x20\x05"  # ctrl_deps 1 and 256 packed, then 5
    listed = b"\x52\x0b\n\x01x\x52\x06\x08\x01\n\x02\x02\x03"  # int64_list 1, then 2 and 3 packed
    doubles = b"\x52\x10\n\x01x\x22\x0b\x09" + b"\0" * 6 + b"\xf0\x3f\n\0"  # double_list 1.0, then an empty pack
    first, second, third, fourth = read_chakra(write(tmp_path / "x.0.et", unpacked, both, listed, doubles)).nodes
    assert (first.ctrl_deps, first.data_deps) == ([1, 256], [7])
    assert second.ctrl_deps == [1, 256, 5]
    assert third.attributes == {"x": Attribute("int64_list", [1, 2, 3])}
    assert fourth.attributes == {"x": Attribute("double_list", [1.0])}


def test_a_message_may_come_in_parts_and_the_last_value_counts(tmp_path: Path) -> None:
    inputs = b"\x42\x03\n\x01v\x42\x03\x12\x01s\x42\x03\n\x01w"
    attribute = b"\x52\x08\n\x01x\x48\x05\xd8\x01\x01"  # int64_val 5, then bool_val true
    (node,) = read_chakra(write(tmp_path / "x.0.et", b"\x08\x01\x08\x02" + inputs + attribute)).nodes
    assert (node.id, node.inputs) == (2, IO("w", "s", ""))
    assert node.attributes == {"x": Attribute("bool", True)}


def test_fields_of_newer_schemas_are_passed_over(tmp_path: Path) -> None:
    unknown = b"\x5a\x02\x08\x01" + b"\xa0\x06\x01" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"  # fields 11 and 100
    attribute = b"\x52\x0a\x12\x03doc\xa2\x06\x02\x08\x01"  # doc_string and the field 100, no value
    (node,) = read_chakra(write(tmp_path / "x.0.et", b"\x08\x05" + unknown + b"\x12\x01n\x18\x0a" + attribute)).nodes
    assert (node.id, node.name, node.type) == (5, "n", 10)
    assert node.attributes == {"": Attribute("", "")}


def test_a_converter_that_leaves_the_version_out(tmp_path: Path) -> None:
    file = read_chakra(write(tmp_path / "x.0.et", b"\x08\x01", b"", metadata=b"\0"))
    assert (file.version, [node.id for node in file.nodes]) == ("", [1, 0])


def test_nodes_are_read_while_they_are_used(tmp_path: Path) -> None:
    """Of a file of 30 MB only a part is held at a time, and what comes before a damage is given."""
    big = b"\x12" + encode_varint(100_000) + b"n" * 100_000
    path = write(tmp_path / "x.0.et", *[big] * 300)
    path.write_bytes(path.read_bytes() + b"\xff" * 20)
    tracemalloc.start()
    nodes = stream_chakra(path).nodes
    assert sum(len(node.name) for node in islice(nodes, 300)) == 30_000_000
    with pytest.raises(BadFileError, match="more than 10 bytes at byte 30,002,108, where node 301"):
        next(nodes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000


# Bad files


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (b"\x08" + b"\xff" * 10 + b"\x01", "bytes that are not a Node message in node 1 of the file"),
        (b"\x08\x05\x12\x7fabc", "bytes that are not a Node message in node 1 .* at byte 9 and has the id 5"),
        (b"\x08\x05\x12" + encode_varint(1 << 62) + b"abc", "bytes that are not"),
        (b"\x08\x80", "bytes that are not"),
        (b"\x12", "bytes that are not"),
        (b"\x00\x00", "bytes that are not"),
        (b"\x0f", "bytes that are not"),
        (b"\x12\x02\xc3\x28", "bytes that are not"),  # text that is not UTF-8
        (b"\x42\x04\n\x02\xc3\x28", "bytes that are not"),
        (b"\x52\x03\x1d\x00\x00", "bytes that are not"),
        (b"\x52\x05\x22\x03\n\x01x", "bytes that are not"),  # a list of doubles in one byte
        (b"\x52\x04\xf2\x01\x02\x08", "bytes that are not"),
        (b"\x22\x02\x01\x80", "bytes that are not"),
        (b"\xa3\x06" * 100_000, "bytes that are not"),  # groups in groups, without an end
        (b"\xa3\x06" * 5_000 + b"\xa4\x06" * 5_000, "bytes that are not"),
        # What the library would pass over.
        (b"\x0b\x08\x01\x0c", "field 1 of Node with the wire type 3 in node 1"),
        (b"\x0a\x01a", "field 1 of Node with the wire type 2"),
        (b"\x10\x01", "field 2 of Node with the wire type 0"),
        (b"\x25abcd", "field 4 of Node with the wire type 5"),
        (b"\x50\x01", "field 10 of Node with the wire type 0"),
        (b"\x42\x02\x08\x01", "field 1 of IOInfo with the wire type 0"),
        (b"\x52\x05\n\x01x\x4a\x00", "field 9 of AttributeProto with the wire type 2"),
    ],
)
def test_a_damaged_node(node: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.0.et", node, b"\x08\x01")
    with pytest.raises(BadFileError, match=message) as caught:
        read_chakra(path)
    assert caught.value.message.startswith(str(path))
    assert "write or copy it again" in caught.value.hint


def test_the_node_that_is_damaged_is_named(tmp_path: Path) -> None:
    good = b"\x08\x07\x12\x01n"
    path = write(tmp_path / "x.0.et", good, good, b"\x08\xac\x02\x12\x05n")
    with pytest.raises(BadFileError, match=r"node 3 of the file, which starts at byte 21 and has the id 300"):
        read_chakra(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "is JSON, not Chakra's protobuf"),
        (b"some text" * 20, "is not a Chakra trace: its first message is not GlobalMetadata"),
        (b"s", "truncated: of its metadata at byte 1 only 0 of 115 bytes"),
        (b"\x02\x08\x01\x02\x08\x02", "is not a Chakra trace"),
        (METADATA + b"\x05\x08\x01", "truncated: of node 1 of the file at byte 9 only 2 of 5 bytes"),
        (METADATA + b"\x02\x08\x01\x80", "the end in the middle of a number at byte 11, where node 2"),
        (METADATA + b"\xff" * 11, "a number of more than 10 bytes at byte 8"),
        (METADATA + b"\xff\xff\xff\xff\xff\x7f" + b"x" * 40, "a message of 4,398,046,511,103 bytes"),
        (METADATA + b"\xff\xff\xff\xff\x07" + b"x" * 40, "only 40 of 2,147,483,647 bytes"),
        (gzip.compress(METADATA + b"\x02\x08\x01", mtime=0)[:-9], "cannot be read: the compressed data ends too early"),
        (b"\x1f\x8bnothing packed", "cannot be read: the compressed data is broken"),
    ],
)
def test_a_file_that_is_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.0.et"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=message) as caught:
        read_chakra(path)
    assert caught.value.message.startswith(str(path))
    assert caught.value.hint


def test_a_length_that_the_file_does_not_have_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.0.et"
    path.write_bytes(METADATA + encode_varint((1 << 31) - 1) + b"x" * 100)
    tracemalloc.start()
    with pytest.raises(BadFileError, match="truncated"):
        read_chakra(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        stream_chakra(tmp_path / "x.0.et")


def test_a_file_cut_anywhere_is_whole_nodes_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.0.et"
    write_graph(graph_of(small_nodes()), path)
    content, whole = path.read_bytes(), read_chakra(path).nodes
    n_whole = 0
    for end in range(1, len(content)):
        path.write_bytes(content[:end])
        try:
            found = read_chakra(path).nodes
        except BadFileError:
            continue
        assert found == whole[: len(found)]
        n_whole += 1
    assert n_whole == len(whole)  # after the metadata, and after each node but the last


@quickly
@given(data=st.data())
def test_no_damage_gives_anything_but_nodes_or_a_bad_file(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.0.et"
    write_graph(graph_of(small_nodes()), path)
    path.write_bytes(data.draw(mutations(path.read_bytes())))
    with suppress(BadFileError):
        read_chakra(path)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    chakra_messages._message_classes.cache_clear()
    with pytest.raises(UsageError, match="needs protobuf") as caught:
        read_chakra(write(tmp_path / "x.0.et", b"\x08\x01"))
    assert caught.value.hint == "pip install 'rankscope[chakra]'"


# Which files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("job.0.et", "job.10.et", "job.2.et.gz", "notes.txt", "job.manifest.json"):
        (tmp_path / name).touch()
    return tmp_path


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


@pytest.mark.parametrize("ending", ["", "/job", "/job."])
def test_a_folder_or_a_prefix_stands_for_all_ranks(ending: str, folder: Path) -> None:
    assert names(find_chakra_files([f"{folder}{ending}"])) == ["job.0.et", "job.2.et.gz", "job.10.et"]


def test_files_are_taken_as_given(folder: Path) -> None:
    chosen = [str(folder / "job.10.et"), str(folder / "notes.txt"), str(folder / "job.10.et")]
    assert find_chakra_files(chosen) == chosen[:2]


def test_the_prefix_of_another_job_is_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "job.b.0.et").touch()
    (folder / "0.et").touch()
    monkeypatch.chdir(folder)
    assert find_chakra_files(["job.b"]) == ["job.b.0.et"]
    assert find_chakra_files(["job"]) == ["job.0.et", "job.2.et.gz", "job.10.et"]


def test_a_folder_with_two_jobs_needs_a_prefix(folder: Path) -> None:
    (folder / "other.0.et").touch()
    with pytest.raises(UsageError, match="2 jobs: job, other") as caught:
        find_chakra_files([str(folder)])
    assert str(folder / "job") in caught.value.hint


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Chakra trace"):
        find_chakra_files([str(tmp_path)])
    with pytest.raises(InputError, match=r"nosuch: no such file or folder, and no nosuch.<rank>.et"):
        find_chakra_files([str(tmp_path / "nosuch")])
    with pytest.raises(InputError, match="no such file or folder"):
        find_chakra_files([str(tmp_path / "nosuch" / "job")])

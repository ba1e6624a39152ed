"""Chakra files made by hand: nodes that keep every rule, with what a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankscope.analyze.chakra.catalogue import RULES
from rankscope.analyze.chakra.validate import validate
from rankscope.analyze.chakra.verdict import Problem
from rankscope.model.chakra import (
    COLLECTIVE_TYPES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    IO,
    METADATA,
    Attribute,
    ChakraFile,
    ChakraNode,
)

KINDS = {
    bool: "bool",
    int: "int64",
    str: "string",
}
INT32 = ("comm_src", "comm_dst", "comm_tag")


def attributes(**values: Any) -> dict[str, Attribute]:
    """None leaves an attribute out; an Attribute stands for itself."""
    return {
        name: value
        if isinstance(value, Attribute)
        else Attribute("int32" if name in INT32 else KINDS[type(value)], value)
        for name, value in values.items()
        if value is not None
    }


def node(number: int, kind: int, after: Sequence[int] = (), *, at: int = -1, us: int = 10, **values: Any) -> ChakraNode:
    """Begins at 100 us times its id, unless said otherwise."""
    return ChakraNode(
        id=number,
        name=f"node{number}",
        type=kind,
        data_deps=list(after),
        start_us=at if at >= 0 else 1000 + 100 * number,
        duration_us=us,
        attributes=attributes(**values),
    )


def cpu(number: int, after: Sequence[int] = (), **values: Any) -> ChakraNode:
    return node(number, COMP, after, **{"is_cpu_op": True, "tid": 1, **values})


def kernel(number: int, after: Sequence[int] = (), **values: Any) -> ChakraNode:
    return node(number, COMP, after, **{"is_cpu_op": False, "stream": 7, **values})


def collective(number: int, after: Sequence[int] = (), *, op: str = "all_reduce", **values: Any) -> ChakraNode:
    said = {"is_cpu_op": False, "comm_type": COLLECTIVE_TYPES.index(op), "comm_size": 4096}
    return node(number, COMM_COLL, after, **{**said, **values})


def send(number: int, to: int, after: Sequence[int] = (), **values: Any) -> ChakraNode:
    said = {"is_cpu_op": False, "comm_dst": to, "comm_tag": 3, "comm_size": 64}
    return node(number, COMM_SEND, after, **{**said, **values})


def receive(number: int, source: int, after: Sequence[int] = (), **values: Any) -> ChakraNode:
    said = {"is_cpu_op": False, "comm_src": source, "comm_tag": 3, "comm_size": 64}
    return node(number, COMM_RECV, after, **{**said, **values})


def groups(number: int, text: str, after: Sequence[int] = ()) -> ChakraNode:
    """A METADATA node; the text is the JSON, written the way that the feeder takes apart."""
    made = node(number, METADATA, after, us=0, is_cpu_op=True)
    made.inputs = IO(values=f"['{text}']")
    return made


def rank_file(rank: int, *nodes: ChakraNode) -> ChakraFile:
    return ChakraFile(path=f"et/job.{rank}.et", version="0.0.4", attributes={}, nodes=list(nodes))


def broken(*files: ChakraFile) -> dict[str, int]:
    return {check.rule: check.n_broken for check in validate(files).rules if check.n_broken}


def only_problem(*files: ChakraFile, rule: str) -> Problem:
    verdict = validate(files)
    assert {check.rule: check.n_broken for check in verdict.rules if check.n_broken} == {rule: 1}
    (problem,) = verdict.problems
    assert problem.rule == rule
    assert problem.help == RULES[rule].help
    assert problem.message.endswith(RULES[rule].effect)
    is_error = problem.severity == "error"
    assert (verdict.valid, verdict.n_errors, verdict.n_warnings) == (not is_error, int(is_error), int(not is_error))
    return problem


def one_rank(*nodes: ChakraNode) -> ChakraFile:
    return rank_file(0, *nodes)


def two_ranks(first: list[ChakraNode], second: list[ChakraNode]) -> tuple[ChakraFile, ChakraFile]:
    return rank_file(0, *first), rank_file(1, *second)

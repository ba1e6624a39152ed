"""The rules that simulators impose on Chakra files: what each requires, what happens otherwise, what to do.

The simulator is astra-sim with its feeder (FeederV3); the text says where Chakra's own, older feeder differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.columns import RankGraph
from rankscope.model.tables import Array

ERROR, WARNING = "error", "warning"
WHOLE_FILE = np.array([-1])


class Rule(NamedTuple):
    name: str
    severity: str
    about: str
    effect: str
    help: str


class Breach(NamedTuple):
    """Nodes of a file that break a rule. The sentence is built only for those that are listed."""

    rule: str
    graph: RankGraph
    rows: Array  # WHOLE_FILE: the file as such
    sentence: Callable[[int], str]


_WRITE_AGAIN = "Write the file again with a converter that does this; `rankscope export --to chakra` does."

_FILE_RULES = (
    Rule(
        "file-name",
        WARNING,
        "A file is named <prefix>.<rank>.et and is not compressed.",
        "astra-sim opens only that name, and does not decompress it.",
        "Rename the file, and unpack it if it is compressed.",
    ),
    Rule(
        "rank-twice",
        ERROR,
        "Every rank has one file.",
        "The simulator takes one prefix, and so one file per rank.",
        "Pass the files of one job only.",
    ),
    Rule(
        "ranks-missing",
        WARNING,
        "Every rank from 0 to the last one that files or groups name has a file.",
        "astra-sim exits with an error if the file of a rank does not exist.",
        "Add the missing files, or simulate fewer ranks.",
    ),
    Rule(
        "no-nodes",
        ERROR,
        "A file has nodes.",
        "The feeder finds nothing to start with and gives up.",
        "Write the file again from a trace that has operators.",
    ),
)

_GRAPH_RULES = (
    Rule(
        "duplicate-id",
        ERROR,
        "No two nodes have the same id.",
        "The feeder keeps the last of them and merges the dependencies of all.",
        "Renumber the nodes.",
    ),
    Rule(
        "id-range",
        WARNING,
        "Ids run from 0 to the number of nodes minus one.",
        "The feeder accepts any id, but tools that use ids as list indices do not.",
        "Renumber the nodes and their dependencies.",
    ),
    Rule(
        "dangling-data-dep",
        ERROR,
        "Every data dependency names a node of the file.",
        "The feeder stops: it considers the file damaged.",
        "Drop the dependency together with the node it names, or keep both.",
    ),
    Rule(
        "dangling-ctrl-dep",
        ERROR,
        "Every control dependency names a node of the file.",
        "astra-sim's feeder stops: it considers the file damaged. The older one ignores these.",
        "Drop the dependency together with the node it names, or keep both.",
    ),
    Rule(
        "cycle",
        ERROR,
        "Dependencies form no cycle.",
        "None of these nodes is ever issued, and the simulation ends without a result.",
        "Drop the dependency in the cycle that contradicts the start times.",
    ),
    Rule(
        "start-node",
        ERROR,
        "At least one node that takes time has no dependencies.",
        "astra-sim ends all other nodes at once, but issues the nodes that depend on them only when a node that takes "
        "time ends: the simulation never starts.",
        "Remove all dependencies on METADATA nodes.",
    ),
    Rule(
        "node-type",
        ERROR,
        "The type of every node is in the schema and not INVALID_NODE.",
        "astra-sim skips an invalid node as if it took no time, and exits at an unknown one.",
        _WRITE_AGAIN,
    ),
    Rule(
        "duration",
        ERROR,
        "No node lasts longer than a day.",
        "The simulator adds it to the rank's time as it is.",
        "Look for a negative number that was written as an unsigned one.",
    ),
    Rule(
        "start-times",
        WARNING,
        "Nodes have start times.",
        "Simulators do not need them, but the order of nodes on a thread or stream is lost, and nothing can be "
        "compared with the measured time.",
        _WRITE_AGAIN,
    ),
    Rule(
        "start-order",
        WARNING,
        "No node starts before a node it depends on.",
        "The simulator delays it: the simulated order is not the measured one.",
        "Check the clocks of the trace, or drop the dependency.",
    ),
)

_NODE_RULES = (
    Rule(
        "is-cpu-op-missing",
        WARNING,
        "Every node says with is_cpu_op where it runs.",
        "The feeder assumes false, and the simulator runs the node on the device.",
        "Write is_cpu_op as a bool on every node.",
    ),
    Rule(
        "comm-on-cpu",
        ERROR,
        "Communication nodes have is_cpu_op=false.",
        "astra-sim throws: communication is not allowed on the CPU.",
        "Write is_cpu_op=false on communication nodes, even if the CPU did the work (gloo).",
    ),
    Rule(
        "attribute-unreadable",
        ERROR,
        "Attributes have a kind that the feeder can convert.",
        "The feeder throws when it reads the attribute.",
        "Write it with the kind shown.",
    ),
    Rule(
        "attribute-kind",
        WARNING,
        "Attributes have the one kind that both feeders read.",
        "astra-sim's feeder converts it, but Chakra's older feeder silently reads 0 (or false).",
        "Write it with the kind shown.",
    ),
    Rule(
        "comm-type",
        ERROR,
        "A collective has a comm_type from the schema.",
        "astra-sim throws when it issues the node.",
        "Write comm_type as int64 with the number of the collective.",
    ),
    Rule(
        "comm-type-unsupported",
        WARNING,
        "Collectives are those astra-sim supports: all-reduce, all-to-all, all-gather, reduce-scatter or broadcast.",
        "astra-sim cannot simulate it and throws. The file itself is correct.",
        "Leave the collective out, or write it as one that moves as much data.",
    ),
    Rule(
        "comm-size",
        ERROR,
        "Communication has a comm_size above 0 (bytes); a barrier may have 0.",
        "astra-sim throws without it. With 0 bytes nothing is sent, and the node never ends.",
        "Write comm_size as int64, in bytes.",
    ),
    Rule(
        "mem-size",
        ERROR,
        "Loads and stores have a tensor_size.",
        "astra-sim throws when it issues the node.",
        "Write tensor_size as uint64, in bytes.",
    ),
)

_GROUP_RULES = (
    Rule(
        "pg-name",
        ERROR,
        "The pg_name of communication is a 32-bit decimal number; none, '' or '0' means all ranks.",
        "astra-sim throws when it converts the name to a number.",
        "Number the groups and write the numbers as text.",
    ),
    Rule(
        "group-metadata",
        ERROR,
        "The input of a METADATA node lists groups, as Python prints a list with one JSON text.",
        "astra-sim prints an error and continues without these groups.",
        'Write inputs.values as [\'[{"pg_name": "1", "ranks": [0, 1]}]\'].',
    ),
    Rule(
        "group-undescribed",
        ERROR,
        "A METADATA node describes every group that communication names.",
        "astra-sim exits: the group is not found.",
        "Describe the group in a METADATA node, or name it in the file given as --comm-group-configuration.",
    ),
    Rule(
        "group-late",
        WARNING,
        "METADATA nodes come first: no dependencies, and lower ids than all other nodes without dependencies.",
        "A collective that is issued before them does not find its group, and astra-sim exits.",
        "Give METADATA nodes the lowest ids and no dependencies.",
    ),
    Rule(
        "not-a-member",
        ERROR,
        "A rank communicates only in groups it belongs to.",
        "The simulator does not find the rank in the group.",
        "Check the ranks of the group in the METADATA node.",
    ),
    Rule(
        "peer-missing",
        ERROR,
        "A send has comm_dst and comm_tag, a receive comm_src and comm_tag.",
        "astra-sim throws when it issues the node.",
        "Write the missing attributes as int32.",
    ),
    Rule(
        "peer",
        ERROR,
        "A peer is another rank of the job; comm_src of a send and comm_dst of a receive are the rank itself.",
        "The simulator throws, or the transfer never ends.",
        "Write global ranks, not positions in a group.",
    ),
)

_RANK_RULES = (
    Rule(
        "collective-mismatch",
        ERROR,
        "All ranks of a group run the same collectives in the same order.",
        "The simulation waits forever, or pairs collectives that do not belong together.",
        "Cut the traces of all ranks at the same step.",
    ),
    Rule(
        "collective-size",
        ERROR,
        "All ranks of a group give a collective the same size.",
        "Ranks wait for messages of a size that no one sends, and the simulation never ends.",
        "Write the same size on all ranks (for uneven splits, the largest).",
    ),
    Rule(
        "transfer-unmatched",
        ERROR,
        "Every send has a receive with the same tag and size on the other rank, and every receive a send.",
        "A receive without a send never ends.",
        "Cut the traces of all ranks at the same step; check tags.",
    ),
    Rule(
        "replay-deadlock",
        ERROR,
        "The graphs of all ranks run to completion.",
        "A simulator gets stuck in the same way.",
        "Look at what these nodes wait for: ranks wait for each other in a cycle.",
    ),
    Rule(
        "one-at-a-time",
        WARNING,
        "The graphs also complete with one CPU node, one kernel and one communication at a time, the lowest id first.",
        "This is how astra-sim runs each rank: there they wait for each other forever.",
        "Add dependencies that give communication the same order on all ranks.",
    ),
)

RULES = {rule.name: rule for rule in (*_FILE_RULES, *_GRAPH_RULES, *_NODE_RULES, *_GROUP_RULES, *_RANK_RULES)}

"""The rules that simulators impose on Chakra files: what each asks for, what happens otherwise, what to do.

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
    """Nodes of a file that break a rule. The sentence is made only for those that are listed."""

    rule: str
    graph: RankGraph
    rows: Array  # WHOLE_FILE: the file as such
    sentence: Callable[[int], str]


_WRITE_AGAIN = "Write the file again with a converter that does this; `rankscope export --to chakra` does."

_FILE_RULES = (
    Rule(
        "file-name",
        WARNING,
        "A file is called <prefix>.<rank>.et and is not compressed.",
        "astra-sim opens only that name, and reads it as it is.",
        "Rename the file, unpack it where it is compressed.",
    ),
    Rule(
        "rank-twice",
        ERROR,
        "Every rank has one file.",
        "The simulator takes one prefix and so one file per rank.",
        "Give the files of one job only.",
    ),
    Rule(
        "ranks-missing",
        WARNING,
        "There is a file for each rank from 0 to the last one that files or groups name.",
        "astra-sim ends with an error when the file of a rank does not exist.",
        "Add the missing files, or simulate fewer ranks.",
    ),
    Rule(
        "no-nodes",
        ERROR,
        "A file has nodes.",
        "The feeder finds nothing to begin with and gives up.",
        "Write the file again from a trace that holds operators.",
    ),
)

_GRAPH_RULES = (
    Rule(
        "duplicate-id",
        ERROR,
        "No two nodes have the same id.",
        "The feeder keeps the last of them and adds up the dependencies of all.",
        "Number the nodes anew.",
    ),
    Rule(
        "id-range",
        WARNING,
        "Ids run from 0 to the number of nodes less one.",
        "The feeder takes any id, but tools that use ids as places in a list do not.",
        "Number the nodes anew, dependencies with them.",
    ),
    Rule(
        "dangling-data-dep",
        ERROR,
        "Every data dependency names a node of the file.",
        "The feeder stops: it takes the file as damaged.",
        "Drop the dependency together with the node that it names, or keep both.",
    ),
    Rule(
        "dangling-ctrl-dep",
        ERROR,
        "Every control dependency names a node of the file.",
        "The feeder of astra-sim stops: it takes the file as damaged. The older one does not look at these.",
        "Drop the dependency together with the node that it names, or keep both.",
    ),
    Rule(
        "cycle",
        ERROR,
        "Dependencies form no cycle.",
        "None of these nodes is ever issued, and the simulation ends without a result.",
        "Drop the dependency of the cycle that contradicts the start times.",
    ),
    Rule(
        "start-node",
        ERROR,
        "At least one node that takes time has no dependencies.",
        "astra-sim ends such nodes at once but issues what they free only when a node that takes time ends: "
        "the simulation never starts.",
        "Let no node depend on METADATA nodes.",
    ),
    Rule(
        "node-type",
        ERROR,
        "The type of every node is one of the schema and not INVALID_NODE.",
        "astra-sim passes over an invalid node as if it took no time, and exits at an unknown one.",
        _WRITE_AGAIN,
    ),
    Rule(
        "duration",
        ERROR,
        "No node lasts longer than a day.",
        "The simulator adds it to the time of the rank as it stands.",
        "Look for a negative number that was written as an unsigned one.",
    ),
    Rule(
        "start-times",
        WARNING,
        "Start times are written.",
        "Simulators do without them, but the order of nodes on a thread or stream is lost, and nothing can be compared "
        "with the measured time.",
        _WRITE_AGAIN,
    ),
    Rule(
        "start-order",
        WARNING,
        "No node begins before a node that it depends on began.",
        "The simulator delays it: the simulated order is not the measured one.",
        "Check the clocks of the trace, or drop the dependency.",
    ),
)

_NODE_RULES = (
    Rule(
        "is-cpu-op-missing",
        WARNING,
        "Every node says by is_cpu_op where it runs.",
        "The feeder takes it as false, and the simulator runs the node on the device.",
        "Write is_cpu_op as a bool on every node.",
    ),
    Rule(
        "comm-on-cpu",
        ERROR,
        "is_cpu_op of communication is false.",
        "astra-sim throws: communication is not allowed on the CPU.",
        "Write is_cpu_op=false on nodes that communicate, also where the CPU did it (gloo).",
    ),
    Rule(
        "attribute-unreadable",
        ERROR,
        "Attributes are of a kind that the feeder can convert.",
        "The feeder throws as soon as it asks for the attribute.",
        "Write it in the kind that is named.",
    ),
    Rule(
        "attribute-kind",
        WARNING,
        "Attributes are of the one kind that both feeders read.",
        "astra-sim's feeder converts it, the older feeder of Chakra silently reads 0 (or false).",
        "Write it in the kind that is named.",
    ),
    Rule(
        "comm-type",
        ERROR,
        "A collective has a comm_type of the schema.",
        "astra-sim throws when it issues the node.",
        "Write comm_type as int64 with the number of the collective.",
    ),
    Rule(
        "comm-type-unsupported",
        WARNING,
        "Collectives are all-reduce, all-to-all, all-gather, reduce-scatter or broadcast, which astra-sim has.",
        "It cannot be simulated by astra-sim, which throws. The file itself is right.",
        "Leave the collective out, or write it as one that moves as much.",
    ),
    Rule(
        "comm-size",
        ERROR,
        "Communication has a comm_size above 0 (bytes); a barrier may have 0.",
        "astra-sim throws without it. With 0 bytes there is nothing to send, and the node never ends.",
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
        "The pg_name of communication is a decimal number of 32 bits; none, '' or '0' is all ranks.",
        "astra-sim throws when it turns the name into a number.",
        "Number the groups and write the numbers as text.",
    ),
    Rule(
        "group-metadata",
        ERROR,
        "The input of a METADATA node lists groups, as Python prints a list that holds one JSON text.",
        "astra-sim prints an error and goes on without these groups.",
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
        "METADATA nodes come first: no dependencies, and an id below that of every other node without dependencies.",
        "A collective that is issued before them does not find its group, and astra-sim exits.",
        "Give METADATA nodes the lowest ids and no dependencies.",
    ),
    Rule(
        "not-a-member",
        ERROR,
        "A rank communicates only in groups that it is in.",
        "The simulator finds no place for the rank in the group.",
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
        "Write ranks of the whole job, not places in a group.",
    ),
)

_RANK_RULES = (
    Rule(
        "collective-mismatch",
        ERROR,
        "All ranks of a group run the same collectives in the same order.",
        "The simulation waits for ever, or pairs collectives that do not belong together.",
        "Cut the traces of all ranks at the same step.",
    ),
    Rule(
        "collective-size",
        ERROR,
        "All ranks of a group give the same size to a collective.",
        "Ranks wait for messages of a size that no one sends, and the simulation never ends.",
        "Write the same size on all ranks (of uneven splits: the largest).",
    ),
    Rule(
        "transfer-unmatched",
        ERROR,
        "Every send has its receive on the other rank, of the same tag and size, and every receive its send.",
        "A receive without its send never ends.",
        "Cut the traces of all ranks at the same step; check tags.",
    ),
    Rule(
        "replay-deadlock",
        ERROR,
        "The graphs of all ranks run to their end.",
        "A simulator gets stuck in the same way.",
        "Look at what the named nodes wait for: ranks wait for each other in turn.",
    ),
    Rule(
        "one-at-a-time",
        WARNING,
        "The graphs also end with one CPU node, one kernel and one communication at a time, the lowest id first.",
        "This is how astra-sim runs each rank: there they wait for each other for ever.",
        "Add dependencies that put the communication of each rank into the same order on all ranks.",
    ),
)

RULES = {rule.name: rule for rule in (*_FILE_RULES, *_GRAPH_RULES, *_NODE_RULES, *_GROUP_RULES, *_RANK_RULES)}

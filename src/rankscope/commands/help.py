"""`rankscope help`: the overview that `rankscope --help` prints, the help of a command, and topics that many share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.commands import COMMANDS, GROUPS, output
from rankscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

INTRODUCTION = """\
usage: rankscope PATH...                diagnose the traces at PATH
       rankscope COMMAND [options]      run a command
       rankscope help COMMAND           show the options of a command

rankscope reads the traces of a PyTorch job and reports what went wrong: which rank, which call,
which line of code, and what to do about it. Reading needs neither torch nor a GPU."""

READING_INTRODUCTION = """\
PATH is one of these, and several may be given:
  a file           traces/nccl_trace_rank_0
  a folder         traces/               searched with all its subfolders
  a pattern        "traces/*.json.gz"    * ? [...], and ** for subfolders
  an archive       traces.tar.gz         .tar, .tar.gz, .tgz or .zip
  a URL            https://host/traces.tar.gz, s3://bucket/run7/
  standard input   -                     part of a job's log: pbpaste | rankscope -

rankscope recognizes a file by its content, not its name. Files that it does not know are skipped, a damaged
file is reported, and everything else is still read and diagnosed.

https:// and http:// files and archives are downloaded to a temporary folder, which is deleted when the command ends.
Folders, and other URLs (s3://, gs://, ...), need fsspec and the package of that store: pip install 'rankscope[remote]'.

Options of every command that reads traces:
"""

TRACES = """\
The three most common ways to get traces:

1. Run the job under rankscope. No change to your code:
     rankscope record -o traces -- torchrun --nproc-per-node 8 train.py

2. A job that hangs: the Flight Recorder writes a dump per rank when a collective times out. Set before the start:
     export TORCH_FR_BUFFER_SIZE=20000                            # before torch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE
     export TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/nccl_trace_rank_    # before: TORCH_NCCL_DEBUG_INFO_TEMP_FILE
     export TORCH_NCCL_DUMP_ON_TIMEOUT=1
   then: rankscope /shared/dumps

3. A slow job: save a torch.profiler trace on every rank:
     with torch.profiler.profile(schedule=torch.profiler.schedule(wait=5, warmup=1, active=3)) as prof:
         ...                                            # call prof.step() after every training step
     prof.export_chrome_trace(f"traces/trace_{rank}.json.gz")

torch.compile:      TORCH_TRACE=torch_trace python train.py, then: rankscope compile torch_trace
Nsight Systems:     nsys profile --trace=cuda,nvtx,osrt ..., or rankscope record --nsys
Execution traces:   rankscope record collects them; link and export --to chakra use them
Metrics and logs:   TensorBoard, Weights & Biases, CSV and JSON lines beside the traces; the job's own log
The job hangs now:  rankscope snapshot, rankscope attach, rankscope desync
No job yet:         rankscope demo"""

ENVIRONMENT = """\
Exit codes:
  0    no finding is an error
  1    at least one finding is an error (--fail-on changes the severity)
  2    the command could not do what was asked; the message says why
  130  interrupted with Ctrl-C
  141  the program that read the output closed it

Environment variables:
  RANKSCOPE_CACHE   folder that keeps the tables of large traces (default: ~/.cache/rankscope)
  RANKSCOPE_DEBUG   set to 1 to see the traceback of a bug in rankscope
  NO_COLOR          no colors; FORCE_COLOR: colors even when the output is not a terminal

The answer goes to standard output; progress, notes and errors go to standard error."""

TOPICS = {
    "reading": "what PATH can be, and the options that all reading commands share",
    "traces": "how to get traces from your job",
    "environment": "exit codes and environment variables",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help=f"a command, or one of: {', '.join(TOPICS)}")


def run(args: Namespace) -> int:
    output.print_lines(_lines(args.topic))
    return 0


def overview() -> Iterator[str]:
    """Every command with an example, grouped by what one wants."""
    yield INTRODUCTION
    width = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        yield ""
        yield f"{title}:"
        for name, command in commands.items():
            yield f"  {name:{width}}  {command.summary}"
            yield f"  {'':{width}}    {command.example}"
    yield ""
    yield from _topic_lines()
    yield ""
    yield "options: -h, --help: this text; --version: the version"


def _topic_lines() -> Iterator[str]:
    yield "Help topics:"
    for name, about in TOPICS.items():
        yield f"  rankscope help {name:{max(map(len, TOPICS))}}  {about}"


def _lines(topic: str | None) -> Iterator[str]:
    if topic is None:
        yield from _all_topics()
    elif topic == "reading":
        yield from _reading()
    elif topic == "traces":
        yield TRACES
    elif topic == "environment":
        yield ENVIRONMENT
    elif topic in COMMANDS:
        from rankscope.cli import command_parser

        yield command_parser(topic).format_help().rstrip("\n")
    else:
        raise UsageError(f"no help on {topic!r}", _closest(topic))


def _all_topics() -> Iterator[str]:
    yield from _topic_lines()
    yield ""
    yield "Commands (rankscope help COMMAND):"
    width = max(map(len, GROUPS))
    for title, commands in GROUPS.items():
        yield f"  {title:{width}}  {', '.join(commands)}"
    yield ""
    yield "Findings: rankscope explain CODE, for example rankscope explain H102"


def _reading() -> Iterator[str]:
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    from rankscope.commands.loading import add_reading_options

    parser = ArgumentParser(add_help=False)
    add_reading_options(parser)
    formatter = RawDescriptionHelpFormatter("rankscope", max_help_position=26)
    formatter.add_arguments(parser._actions)
    yield READING_INTRODUCTION.rstrip("\n")
    yield formatter.format_help().rstrip("\n")


def _closest(topic: str) -> str:
    if topic[:1].isalpha() and topic[1:].isdecimal():
        return f"rankscope explain {topic.upper()}"
    return did_you_mean(topic, (*TOPICS, *COMMANDS)) or "rankscope help lists all topics"

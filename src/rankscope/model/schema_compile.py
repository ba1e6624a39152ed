"""Tables from torch.compile logs: TORCH_TRACE files, and what TORCH_LOGS text has of the same."""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import Missing, TableSpec, spec

_spec = partial(spec, source="compile_logs")
_logged = partial(Missing, is_always_logged=True)

COMPILE_TABLES: tuple[TableSpec, ...] = (
    spec(
        "compile_logs",
        "torch.compile logs: one process's TORCH_TRACE file, or the part of a text log that one rank wrote.",
        """
        file_id        int32  The file.
        rank           int32  Global rank; 0 for a job that is not distributed, NULL when unknown.
        run            int32  Run of the job that it belongs to; 0 is the first one in this capture.
        source         text   trace (TORCH_TRACE) or text (TORCH_LOGS).
        plain_path     text   The uncompressed file; compile_records points into it.
        pid            int64  Process that wrote it.
        n_records      int64  Records, or lines of a text log, of all kinds.
        n_bad          int64  Records that could not be parsed.
        n_unresolved   int64  Stack frames whose file name is not in the log: a forked child wrote the log.
        is_cut         bool   True when the last record is incomplete: the process ended while writing it.
        first_ns       int64  Time of the first record.
        last_ns        int64  Time of the last record.
        clock          text   absolute (year and zone taken from the records) or assumed (they have no absolute time).
        torch_version  text   Version of torch, where recorded.
        """,
        missing=Missing(
            "no torch.compile logs in this capture: record with TORCH_TRACE=FOLDER",
            setting="compile_log",
            none_came="nothing was compiled",
        ),
    ),
    _spec(
        "compile_records",
        "Index of the TORCH_TRACE files: one row per record, with the position of its header and payload.",
        """
        file_id           int32  The file.
        rank              int32  Global rank: from the record, else from the file.
        record            int32  Position in the file, from 0.
        time_ns           int64  When it was written.
        kind              text   Kind of record, as torch names it; empty when it could not be parsed.
        name              text   Name of the artifact, graph, file or link, where the kind has one.
        encoding          text   string or json: what the artifact claims its payload is.
        compile_id        text   The compilation: 0/1 is frame 0, compiled for the 2nd time; !2 compiled autograd.
        frame_id          int32  Number of the frame.
        frame_compile_id  int32  How often the frame had been compiled before.
        autograd_id       int32  Number of the compiled autograd graph.
        attempt           int32  How often the compilation had been restarted.
        subgraph          text   The part of the graph that the record is about, if it was compiled separately.
        md5               text   Checksum of the payload, as recorded; empty if none.
        start             int64  Byte at which the record's first line begins in compile_logs.plain_path.
        header_start      int64  Byte at which its JSON begins.
        n_header_bytes    int64  Length of its JSON.
        payload_start     int64  Byte at which the payload begins, including its tabs.
        n_payload_bytes   int64  Length of the payload with its tabs; 0 if none.
        """,
        missing="no compile_records in the logs",
    ),
    _spec(
        "compilations",
        "One row per compilation and phase, from the metrics that torch logs at its end.",
        """
        file_id            int32  The file.
        rank               int32  Global rank.
        record             int32  Its metrics in compile_records; its start, if it never ended.
        compile_id         text   The compilation.
        frame_id           int32  Number of the frame.
        frame_compile_id   int32  How often the frame had been compiled before.
        autograd_id        int32  Number of the compiled autograd graph.
        attempt            int32  How often it was restarted.
        phase              text   forward, backward, runtime (work done when the compiled code first ran).
        status             text   ok, empty (no operator captured), failed or unfinished (the log ends before it did).
        function           text   Function that was compiled.
        file               text   Its source file.
        line               int32  Its first line.
        start_ns           int64  When it began.
        duration_ns        int64  Total time.
        dynamo_ns          int64  Tracing the Python code, including everything that it triggered.
        backend_ns         int64  The backend, including everything that it triggered.
        aot_ns             int64  AOTAutograd, including everything that it triggered.
        inductor_ns        int64  Inductor, including code generation.
        code_gen_ns        int64  Generating code.
        triton_ns          int64  Compiling Triton kernels.
        autotune_ns        int64  Autotuning kernels, at compile time and at run time.
        cudagraph_ns       int64  Recording CUDA graphs.
        pass_ns            int64  Graph passes: pre-grad, joint and post-grad.
        gc_ns              int64  Python's garbage collection.
        cache_ns           int64  Waiting for remote caches.
        logging_ns         int64  Writing this log.
        lost_ns            int64  Tracing that was thrown away by restarts.
        n_ops              int64  Operators in the captured graph.
        n_nodes            int64  Nodes in the captured graph.
        n_inputs           int64  Inputs of the captured graph.
        n_guards           int64  Guards.
        n_shape_guards     int64  Guards on symbolic shapes.
        guard_latency_ns   int64  Time that checking the guards takes on every call, as measured when compiling.
        cache_size         int64  Compiled versions of the frame before this one.
        n_graph_breaks     int64  Graph breaks, where counted.
        restart_reasons    text   Why tracing restarted, as JSON.
        fail_type          text   Exception with which it failed.
        fail_reason        text   Its text.
        fail_file          text   Where in the user's code it failed.
        fail_line          int32  The line there.
        recompile_reason   text   Why it was recompiled, in torch's words.
        cudagraph_skip     text   Why CUDA graphs were not used.
        n_fx_hits          int64  Hits in the FX graph cache.
        n_fx_misses        int64  Misses in the FX graph cache.
        n_aot_hits         int64  Hits in the AOTAutograd cache.
        n_aot_misses       int64  Misses in the AOTAutograd cache.
        """,
        missing=_logged("no compilations in this log: run with TORCH_TRACE=FOLDER"),
    ),
    _spec(
        "compile_stacks",
        "The Python call stack when each frame was compiled, outermost call first.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        compile_id  text   The compilation.
        depth       int32  Position; 0 is the outermost call, and the last one is the compiled frame itself.
        file        text   Source file.
        line        int32  Line.
        function    text   Function.
        code        text   The line of code, where recorded.
        is_user     bool   False for frames of torch and of Python itself.
        """,
    ),
    _spec(
        "graph_breaks",
        "Graph breaks: every place where tracing stopped and the graph was split.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        compile_id   text   The compilation.
        attempt      int32  How often it had been restarted.
        time_ns      int64  When it was logged.
        file         text   Source file of the break.
        line         int32  Its line.
        function     text   Its function.
        code         text   The line of code, where recorded.
        is_user      bool   False for code that belongs to torch or to Python itself.
        reason       text   What could not be traced, in one line.
        explanation  text   Torch's explanation.
        hints        text   Torch's hints, one per line.
        break_id     text   Torch's id for this kind of break (gb0124).
        url          text   Torch's page about it.
        caller_file  text   File of the user's code that led there, if the break is in library code.
        caller_line  int32  Its line.
        """,
        missing=_logged("no graph breaks in this log: run with TORCH_LOGS=graph_breaks, or TORCH_TRACE=FOLDER"),
    ),
    _spec(
        "recompiles",
        "One row per failed guard, that is, per compiled version that did not match a call.",
        """
        file_id           int32  The file.
        rank              int32  Global rank.
        compile_id        text   The resulting recompilation.
        frame_id          int32  Number of the frame.
        frame_compile_id  int32  How often the frame had been compiled before.
        time_ns           int64  When it was logged.
        against           text   The earlier compilation whose guard failed.
        guard             text   The expression that did not hold.
        cause             text   size, stride, rank, dtype, device, gradient, value, type, identity, keys, state, other.
        subject           text   The argument, attribute or global that the guard is about, if it names one.
        dimension         int32  Index of the dimension, where a size differs.
        expected          text   The value that the code was compiled for.
        actual            text   The value in the call.
        file              text   Where the guard comes from.
        line              int32  Its line.
        function          text   Its function.
        code              text   The line of code.
        hint              text   Torch's hint.
        """,
        missing=_logged("no recompilations in this log: run with TORCH_LOGS=recompiles, or TORCH_TRACE=FOLDER"),
    ),
    _spec(
        "guards",
        "Decisions about symbolic shapes: symbols created, guards added, dimensions made constant.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        record      int32  The record in compile_records.
        kind        text   symbol, guard or specialization.
        symbol      text   The symbol (s48), where there is one.
        expression  text   The guard, or the range of the symbol.
        value       text   The value at the time, or the constant it became.
        source      text   The argument and dimension behind the symbol.
        reason      text   Why, in torch's words.
        file        text   The user's line that required it.
        line        int32  Its line.
        function    text   Its function.
        code        text   The line of code.
        """,
        missing=_logged("no symbolic shapes in this log: run with TORCH_LOGS=dynamic, or TORCH_TRACE=FOLDER"),
    ),
    _spec(
        "cache_events",
        "Every lookup in a compile cache.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        record      int32  The record in compile_records, whose payload has the components of the key.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        time_ns     int64  When it happened.
        cache       text   fx_graph or aotautograd, or another name as logged.
        outcome     text   hit, miss or bypass.
        artifact    text   Name of its record as torch writes it: fx_graph_cache_miss, aotautograd_cache_hit, ...
        also_named  text   Alternative spelling of that name, if there is one: aot_autograd_cache_hit.
        key         text   The key.
        detail      text   Details of the outcome, as torch logs them.
        reason      text   Why the cache was bypassed.
        taken_ns    int64  Time taken, or saved by a hit, as recorded.
        """,
        missing=_logged("no cache lookups in this log: run with TORCH_TRACE=FOLDER"),
    ),
    _spec(
        "compile_errors",
        "Errors that the compiler logged, with the line in the user's code.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        record      int32  The record in compile_records.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        kind        text   Kind of the record: dynamo_error, missing_fake_kernel, ...
        type        text   Exception or kind of problem.
        message     text   Text of the message.
        file        text   The user's line.
        line        int32  Its line.
        function    text   Its function.
        code        text   The line of code.
        """,
        missing=_logged("no compiler errors in this log"),
    ),
    _spec(
        "log_lines",
        "Messages in TORCH_LOGS text; a message of several lines is one row.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        line        int64  Line of the file at which it begins.
        time_ns     int64  When it was written.
        level       text   debug, info, warning, error or critical.
        pid         int64  Process, as logged.
        module      text   Torch's source file that wrote it.
        module_line int32  Its line.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        channel     text   The logging channel: recompiles, graph_breaks, guards, perf_hints, ...
        message     text   The text.
        """,
        missing="no TORCH_LOGS output in this capture",
    ),
    _spec(
        "compile_events",
        "The phases of each compilation: properly nested spans and single moments.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        record       int32  The record in compile_records that begins it.
        end_record   int32  The record that ends it; NULL if none.
        compile_id   text   The compilation.
        name         text   Torch's name for the phase.
        track        int32  Spans of one track are nested; work that ran in parallel has its own track.
        depth        int32  How many spans of its track enclose it.
        start_ns     int64  When it began.
        duration_ns  int64  How long it took; 0 for a moment.
        own_ns       int64  Time not covered by the spans inside it.
        state        text   span, moment, or open (its end is missing; it ends with the enclosing span).
        """,
        "derived",
    ),
    _spec(
        "compile_ledger",
        "What compiling cost: one row per rank and line of code, the most expensive first.",
        """
        rank            int32  Global rank.
        run             int32  Run of the job.
        file            text   Source file of the compiled function.
        line            int32  Its first line.
        function        text   The function; parts after a graph break are included.
        n_compilations  int64  Number of compilations.
        n_recompiles    int64  Compilations after the first of their frame.
        n_failed        int64  Compilations that failed.
        n_graph_breaks  int64  Number of graph breaks in it.
        total_ns        int64  Total time.
        recompile_ns    int64  Part of it for all but the first compilation of each frame.
        dynamo_ns       int64  Tracing Python, without the phases below.
        aot_ns          int64  AOTAutograd, without the phases below.
        inductor_ns     int64  Inductor, without the phases below.
        code_gen_ns     int64  Generating and compiling code, without Triton.
        triton_ns       int64  Compiling Triton kernels.
        autotune_ns     int64  Autotuning kernels.
        forward_ns      int64  Part of the total: forward.
        backward_ns     int64  Part of the total: backward.
        runtime_ns      int64  Part of the total: while the compiled code ran.
        """,
        "derived",
        missing="no compile times in the logs: record with TORCH_TRACE=FOLDER",
    ),
    _spec(
        "compile_graphs",
        "The graphs that each rank captured, in order, with a fingerprint that ignores what may differ between ranks.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        run          int32  Run of the job.
        record       int32  The record in compile_records.
        compile_id   text   The compilation.
        position     int32  Position among the rank's graphs.
        fingerprint  text   Equal for graphs that differ only in device numbers and generated names.
        n_ops        int32  Number of operators.
        file         text   Source file of the compiled function.
        line         int32  Its first line.
        function     text   The function.
        """,
        "derived",
        missing="no compile_graphs in the logs",
    ),
    _spec(
        "compile_collectives",
        "The collectives of each compiled graph, in the order in which the code runs them.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        run         int32  Run of the job.
        record      int32  The record in compile_records that lists them.
        compile_id  text   The compilation.
        position    int32  Position in the graph.
        op          text   Operation, as the compiler names it.
        """,
        "derived",
        missing="no collective schedules in the logs: none were compiled, or torch is older than 2.8",
    ),
    _spec(
        "compile_estimates",
        "How long the compiler expects each operation of a graph to take.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        run          int32  Run of the job.
        record       int32  The record in compile_records that lists them.
        compile_id   text   The compilation.
        position     int32  Position in the graph.
        op           text   Operation.
        kind         text   compute or collective.
        estimate_ns  int64  The estimate.
        outputs      text   Shape, stride and type of its outputs, as JSON.
        """,
        "derived",
        missing="no runtime estimates in the logs: run with LOG_TLPARSE=1",
    ),
    _spec(
        "graph_executions",
        "The order in which each rank ran its compiled graphs.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        run         int32  Run of the job.
        record      int32  The record in compile_records that lists them.
        position    int32  Position in the order.
        compile_id  text   The compilation whose code ran.
        """,
        "derived",
        missing="no execution order in the logs: run under "
        "torch._inductor.debug.record_and_log_graph_execution_order()",
    ),
)

"""Tables that torch.compile's logs give: TORCH_TRACE files, and what TORCH_LOGS text has of the same."""

from __future__ import annotations

from rankscope.model.schema import TableSpec, spec

COMPILE_TABLES: tuple[TableSpec, ...] = (
    spec(
        "compile_logs",
        "Every log of torch.compile: one process's TORCH_TRACE file, or the part of a text log that one rank wrote.",
        """
        file_id        int32  The file.
        rank           int32  Global rank; 0 for a job that is not distributed, NULL where nothing tells it.
        run            int32  Which run of the job it belongs to: 0 is the first one in this capture.
        source         text   trace (TORCH_TRACE) or text (TORCH_LOGS).
        plain_path     text   Where its bytes lie unpacked; compile_records points into this file.
        pid            int64  Process that wrote it.
        n_records      int64  Records, or lines of a text log, of all kinds.
        n_bad          int64  Records of which nothing could be understood.
        n_unresolved   int64  Stack frames whose file name is not in the log: it was written by a forked child.
        is_cut         bool   True when the last record is incomplete: the process was ended while writing.
        first_ns       int64  Time of the first record.
        last_ns        int64  Time of the last record.
        clock          text   absolute (year and zone taken from the records) or assumed (they hold no absolute time).
        torch_version  text   Version of torch, where recorded.
        """,
    ),
    spec(
        "compile_records",
        "The index of the TORCH_TRACE files: one row per record, with the place of its header and payload.",
        """
        file_id           int32  The file.
        rank              int32  Global rank: the record's own, else the file's.
        record            int32  Position in the file, from 0.
        time_ns           int64  When it was written.
        kind              text   Kind of record, as torch names it; empty when it could not be understood.
        name              text   Name of the artifact, graph, file or link, where the kind has one.
        encoding          text   string or json: what an artifact says its payload is (it need not be).
        compile_id        text   The compilation: 0/1 is frame 0, compiled for the 2nd time; !2 compiled autograd.
        frame_id          int32  Number of the frame.
        frame_compile_id  int32  How often the frame had been compiled before.
        autograd_id       int32  Number of the compiled autograd graph.
        attempt           int32  How often the compilation had been restarted.
        subgraph          text   The part of the graph that the record is about, where it was compiled by itself.
        md5               text   Checksum of the payload, as recorded; empty when there is none.
        start             int64  Byte at which the record's first line begins in compile_logs.plain_path.
        header_start      int64  Byte at which its JSON begins.
        n_header_bytes    int64  Length of its JSON.
        payload_start     int64  Byte at which the payload begins, tabs and all.
        n_payload_bytes   int64  Length of the payload with its tabs; 0 when there is none.
        """,
    ),
    spec(
        "compilations",
        "One row per compilation and phase, as torch's metrics tell it at its end.",
        """
        file_id            int32  The file.
        rank               int32  Global rank.
        record             int32  Its metrics in compile_records; its start where it never ended.
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
        duration_ns        int64  How long it took in all.
        dynamo_ns          int64  Tracing the Python code, everything it called for included.
        backend_ns         int64  The backend, everything it called for included.
        aot_ns             int64  AOTAutograd, everything it called for included.
        inductor_ns        int64  Inductor, code generation included.
        code_gen_ns        int64  Generating code.
        triton_ns          int64  Compiling Triton kernels.
        autotune_ns        int64  Trying variants of kernels, at compile time and at run time.
        cudagraph_ns       int64  Recording CUDA graphs.
        pass_ns            int64  Graph passes before, between and after the gradients.
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
        restart_reasons    text   Why tracing began anew, as JSON.
        fail_type          text   Exception that ended it.
        fail_reason        text   Its text.
        fail_file          text   Where in the user's code it failed.
        fail_line          int32  The line there.
        recompile_reason   text   Why it was compiled again, as torch words it.
        cudagraph_skip     text   Why CUDA graphs were not used.
        n_fx_hits          int64  Hits of the FX graph cache.
        n_fx_misses        int64  Misses of the FX graph cache.
        n_aot_hits         int64  Hits of AOTAutograd's cache.
        n_aot_misses       int64  Misses of AOTAutograd's cache.
        """,
    ),
    spec(
        "compile_stacks",
        "The Python stack under which each frame was compiled, outermost call first.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        compile_id  text   The compilation.
        depth       int32  Position, 0 is the outermost call; the last one is the compiled frame itself.
        file        text   Source file.
        line        int32  Line.
        function    text   Function.
        code        text   The line of code, where recorded.
        is_user     bool   False for frames of torch and of Python itself.
        """,
    ),
    spec(
        "graph_breaks",
        "Every place at which tracing stopped and the graph was cut in two.",
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
        is_user      bool   False for code of torch or of Python itself.
        reason       text   What could not be traced, in one line.
        explanation  text   Torch's explanation.
        hints        text   Torch's hints, a line each.
        break_id     text   Torch's number of this kind of break (gb0124).
        url          text   Torch's page about it.
        caller_file  text   The user's own line that led there, where the break is in foreign code.
        caller_line  int32  Its line.
        """,
    ),
    spec(
        "recompiles",
        "One row per compiled version that did not fit a call, that is per failed guard.",
        """
        file_id           int32  The file.
        rank              int32  Global rank.
        compile_id        text   The compilation that became necessary.
        frame_id          int32  Number of the frame.
        frame_compile_id  int32  How often the frame had been compiled before.
        time_ns           int64  When it was logged.
        against           text   The earlier compilation whose guard failed.
        guard             text   The expression that did not hold.
        cause             text   size, stride, rank, dtype, device, gradient, value, type, identity, keys, state, other.
        subject           text   What it is about: the argument, attribute or global, as far as the guard names it.
        dimension         int32  Index of the dimension, where a size differs.
        expected          text   What the compiled version was made for.
        actual            text   What the call brought.
        file              text   Where the guard comes from.
        line              int32  Its line.
        function          text   Its function.
        code              text   The line of code.
        hint              text   Torch's hint.
        """,
    ),
    spec(
        "guards",
        "Decisions about symbolic shapes: symbols made, guards added, dimensions made constant.",
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
        reason      text   Why, as torch words it.
        file        text   The user's line that asked for it.
        line        int32  Its line.
        function    text   Its function.
        code        text   The line of code.
        """,
    ),
    spec(
        "cache_events",
        "Every look-up in the caches of compiled code.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        record      int32  The record in compile_records, whose payload holds the key's components.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        time_ns     int64  When it happened.
        cache       text   fx_graph or aotautograd, or another name as logged.
        outcome     text   hit, miss or bypass.
        artifact    text   Name of its record as torch writes it: fx_graph_cache_miss, aotautograd_cache_hit, ...
        also_named  text   The other spelling of that name, where there is one: aot_autograd_cache_hit.
        key         text   The key.
        detail      text   Torch's detail on the outcome.
        reason      text   Why the cache was passed by.
        taken_ns    int64  Time that was taken, or that a hit saved, as recorded.
        """,
    ),
    spec(
        "compile_errors",
        "Errors that the compiler logged, with the place in the user's code.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        record      int32  The record in compile_records.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        kind        text   The record that tells it: dynamo_error, missing_fake_kernel, ...
        type        text   Exception or kind of problem.
        message     text   What it says.
        file        text   The user's line.
        line        int32  Its line.
        function    text   Its function.
        code        text   The line of code.
        """,
    ),
    spec(
        "log_lines",
        "Messages of TORCH_LOGS text: what several lines say together is one row.",
        """
        file_id     int32  The file.
        rank        int32  Global rank.
        line        int64  Line of the file at which it begins.
        time_ns     int64  When it was written.
        level       text   debug, info, warning, error or critical.
        pid         int64  Process, as logged.
        module      text   Source file of torch that wrote it.
        module_line int32  Its line.
        compile_id  text   The compilation.
        attempt     int32  How often it had been restarted.
        channel     text   What was switched on to get it: recompiles, graph_breaks, guards, perf_hints, ...
        message     text   The text.
        """,
    ),
    spec(
        "compile_events",
        "The phases of each compilation: spans that are nested properly, and single moments.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        record       int32  The record in compile_records that begins it.
        end_record   int32  The record that ends it; NULL where there is none.
        compile_id   text   The compilation.
        name         text   Name of the phase, as torch has it.
        track        int32  Spans of one track are nested; work that ran beside it has a track of its own.
        depth        int32  How many spans of its track enclose it.
        start_ns     int64  When it began.
        duration_ns  int64  How long it took; 0 for a moment.
        own_ns       int64  The part of it that no span inside it has.
        state        text   span, moment, or open (its end is missing; it was closed by what encloses it).
        """,
        "derived",
    ),
    spec(
        "compile_ledger",
        "What compiling cost: one row per rank and place in the code, the dearest first.",
        """
        rank            int32  Global rank.
        run             int32  Run of the job.
        file            text   Source file of the compiled function.
        line            int32  Its first line.
        function        text   The function; parts behind a graph break are counted with it.
        n_compilations  int64  Compilations.
        n_recompiles    int64  Of these, not the first of their frame.
        n_failed        int64  Of these, failed.
        n_graph_breaks  int64  Graph breaks in it.
        total_ns        int64  Time in all.
        recompile_ns    int64  Of this, for all but the first compilation of each frame.
        dynamo_ns       int64  Tracing Python, without what follows.
        aot_ns          int64  AOTAutograd, without what follows.
        inductor_ns     int64  Inductor, without what follows.
        code_gen_ns     int64  Generating and compiling code, without Triton.
        triton_ns       int64  Compiling Triton kernels.
        autotune_ns     int64  Trying variants of kernels.
        forward_ns      int64  Of the total: forward.
        backward_ns     int64  Of the total: backward.
        runtime_ns      int64  Of the total: when the compiled code ran.
        """,
        "derived",
    ),
    spec(
        "compile_graphs",
        "The graphs that each rank captured, in order, with a fingerprint that leaves out what may differ by rank.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        run          int32  Run of the job.
        record       int32  The record in compile_records.
        compile_id   text   The compilation.
        position     int32  Position among the rank's graphs.
        fingerprint  text   Equal for graphs that are equal but for device numbers and generated names.
        n_ops        int32  Operators.
        file         text   Source file of the compiled function.
        line         int32  Its first line.
        function     text   The function.
        """,
        "derived",
    ),
    spec(
        "compile_collectives",
        "The collectives of each compiled graph in the order in which the code will run them.",
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
    ),
    spec(
        "compile_estimates",
        "What the compiler expects each operation of a graph to take.",
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
    ),
    spec(
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
    ),
)

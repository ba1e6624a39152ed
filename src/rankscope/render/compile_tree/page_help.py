"""What a reader may want to know about the report: compile ids, the files, the kinds of records."""

from __future__ import annotations

from functools import lru_cache

from rankscope.model.artifact_names import with_other_spelling
from rankscope.render.html import text

FILES: dict[str, str] = {
    "compilation_metrics": "Everything torch measured about the compilation, with its stack and what it guards on",
    "bwd_compilation_metrics": "The same for the backward pass",
    "compilation_metrics_runtime": "Work that was done when the compiled code first ran",
    "compiled_autograd_graph": "What compiled autograd recorded of a backward pass",
    "dynamo_output_graph": "The graph that Dynamo captured from the Python code",
    "dynamo_cpp_guards_str": "The guards: what must hold for the compiled code to be used again",
    "dynamo_guards": "The guards one by one",
    "dynamo_graph_break_reason": "Where and why tracing stopped",
    "dynamo_error": "The exception that ended the compilation",
    "recompile_reasons": "The guards that failed and made this compilation necessary",
    "optimize_ddp_split_graph": "How DDP's optimizer cut the graph, so that gradients can be sent early",
    "optimize_ddp_split_child": "One of the pieces that DDP's optimizer made",
    "before_pre_grad_graph": "The graph before the passes that come ahead of autograd",
    "after_pre_grad_graph": "The graph after the passes that come ahead of autograd",
    "inductor_pre_grad_graph": "The graph after the passes that come ahead of autograd",
    "aot_joint_graph": "Forward and backward in one graph, decomposed into basic operators",
    "aot_forward_graph": "The forward part of the joint graph",
    "aot_backward_graph": "The backward part of the joint graph",
    "aot_inference_graph": "The decomposed graph where no gradient is needed",
    "before_joint_graph": "The joint graph before its passes",
    "after_joint_graph": "The joint graph after its passes",
    "before_post_grad_graph": "The graph before the passes that come after autograd",
    "after_post_grad_graph": "The graph after the passes that come after autograd",
    "inductor_post_grad_graph": "The graph after the passes that come after autograd: what code is generated from",
    "fx_graph_runnable": "The graph before these passes as a script that runs by itself, with torch's settings",
    "inductor_output_code": "The code that Inductor generated: what runs in the end",
    "fx_graph_cache_hit": "Inductor's cache had this graph; with the parts of its key",
    "fx_graph_cache_miss": "Inductor's cache did not have this graph; with the parts of its key",
    "fx_graph_cache_bypass": "Inductor's cache was not asked, and why",
    "aotautograd_cache_hit": "AOTAutograd's cache had this graph",
    "aotautograd_cache_miss": "AOTAutograd's cache did not have this graph",
    "aotautograd_cache_bypass": "AOTAutograd's cache was not asked, and why",
    "inductor_collective_schedule": "The collectives in the order in which the generated code runs them",
    "inductor_runtime_and_tensor_meta": "What the compiler expects each operation to take",
    "graph_execution": "The order in which compiled graphs ran",
}

KINDS: dict[str, str] = {
    "str": "File names, told once and then called by number",
    "artifact": "Files with a name of their own: caches, graphs, reasons, settings",
    "chromium_event": "Beginnings and ends of phases: the timeline",
    "dynamo_start": "The stack under which a frame is compiled",
    "describe_storage": "Storages behind the tensors of a graph",
    "describe_tensor": "Tensors that enter a graph",
    "describe_source": "Where the tensors come from",
    "create_symbol": "A size that became a symbol",
    "create_unbacked_symbol": "A size that only the data tells",
    "guard_added": "A guard on symbolic shapes, with all that led to it",
    "guard_added_fast": "A guard on symbolic shapes",
    "symbolic_shape_specialization": "A symbol that was made a constant",
    "propagate_real_tensors": "A value that was taken from real data",
    "propagate_real_tensors_provenance": "A value that was taken from real data, with all that led to it",
    "expression_created": "A symbolic expression",
    "guard_on_data_dependent_error": "A decision that only the data could make",
    "missing_fake_kernel": "An operator that cannot be traced: it has no fake kernel",
    "mismatched_fake_kernel": "An operator whose fake kernel does not agree with the real one",
    "exported_program": "The program that was exported",
    "export": "The beginning of an export",
    "dump_file": "Source of generated functions",
    "graph_dump": "Text that a backend had written down",
    "link": "An address that the job logged",
    "aot_autograd_backward_compilation_metrics": "Metrics of the backward pass in old logs",
    "bwd_compilation_metrics_runtime": "Work that was done when the compiled backward code first ran",
    **FILES,
}


def about_file(name: str) -> str:
    """A numbered file of the report."""
    return about(name.rpartition("_")[0] or name)


@lru_cache(maxsize=4096)
def about(stem: str) -> str:
    """By the longest name that the file's begins with: numbers and hashes follow it."""
    return FILES[max(known, key=len)] if (known := [known for known in FILES if stem.startswith(known)]) else ""


def help_html() -> str:
    named = ((with_other_spelling(name), what) for name, what in FILES.items())
    rows = "".join(f"<tr><td><code>{text(name)}</code></td><td>{text(what)}</td></tr>" for name, what in named)
    return f"""
<h3>Compile ids</h3>
<p><code>[x/y]</code> is one compilation: <b>x</b> numbers the frame, that is the Python function or the rest of it
behind a graph break; <b>y</b> counts how often that frame was compiled before. <code>[0/0]</code> is the first frame,
<code>[0/1]</code> the same frame compiled again, <code>[1/0]</code> another frame. A frame that appears with many y
was recompiled many times; many different x in one function mean graph breaks.</p>
<p><code>[x/y_z]</code>: tracing began anew, <b>z</b> times; mostly because of a graph break in a function that was to
be inlined. <code>[!a/x/y]</code>: <b>a</b> numbers the backward pass that compiled autograd recorded, which is then
compiled as frame x. <code>[-/-]</code>: not part of a compilation.</p>
<h3>From Python to kernels</h3>
<ol class="phases">
<li>With compiled autograd, a backward pass is recorded first: <code>compiled_autograd_graph</code>.</li>
<li>Dynamo runs the function symbolically and captures <code>dynamo_output_graph</code>.</li>
<li>Under DDP the graph may be cut into pieces: <code>optimize_ddp_split_graph</code> and its children; what follows
then happens once per piece.</li>
<li>AOTAutograd makes <code>aot_joint_graph</code> and parts it into <code>aot_forward_graph</code> and
<code>aot_backward_graph</code>; without gradients there is one <code>aot_inference_graph</code>.</li>
<li>Inductor's passes give <code>inductor_post_grad_graph</code>.</li>
<li>Inductor writes <code>inductor_output_code</code>, a program that also runs by itself.</li>
</ol>
<h3>Files</h3>
<p>Not every job has all of them. Numbers at the end of a name count the files of the log.</p>
<div class="wide"><table class="help"><tbody>{rows}</tbody></table></div>
<p class="faint">The log, and so this report, holds the model's code, but no weights. Mind this before you share it.</p>
"""

"""Background for readers of the report: compile ids, files, kinds of records."""

from __future__ import annotations

from functools import lru_cache

from rankscope.model.artifact_names import with_other_spelling
from rankscope.render.html import Html, joined, markup

FILES: dict[str, str] = {
    "compilation_metrics": "Everything torch measured about the compilation, with its stack and guards",
    "bwd_compilation_metrics": "The same for the backward pass",
    "compilation_metrics_runtime": "Work done when the compiled code first ran",
    "compiled_autograd_graph": "The backward pass that compiled autograd recorded",
    "dynamo_output_graph": "The graph that Dynamo captured from the Python code",
    "dynamo_cpp_guards_str": "The guards: what must hold for the compiled code to be reused",
    "dynamo_guards": "The guards one by one",
    "dynamo_graph_break_reason": "Where and why tracing stopped",
    "dynamo_error": "The exception that ended the compilation",
    "recompile_reasons": "The guards that failed and made this compilation necessary",
    "optimize_ddp_split_graph": "How DDP's optimizer cut the graph, so that gradients can be sent early",
    "optimize_ddp_split_child": "One of the pieces that DDP's optimizer made",
    "before_pre_grad_graph": "The graph before the pre-grad passes",
    "after_pre_grad_graph": "The graph after the pre-grad passes",
    "inductor_pre_grad_graph": "The graph after the pre-grad passes",
    "aot_joint_graph": "Forward and backward in one graph, decomposed into basic operators",
    "aot_forward_graph": "The forward part of the joint graph",
    "aot_backward_graph": "The backward part of the joint graph",
    "aot_inference_graph": "The decomposed graph, when no gradients are needed",
    "before_joint_graph": "The joint graph before its passes",
    "after_joint_graph": "The joint graph after its passes",
    "before_post_grad_graph": "The graph before the post-grad passes",
    "after_post_grad_graph": "The graph after the post-grad passes",
    "inductor_post_grad_graph": "The graph after the post-grad passes: what code is generated from",
    "fx_graph_runnable": "The graph before these passes as a standalone script, with torch's settings",
    "inductor_output_code": "The code that Inductor generated: what actually runs",
    "fx_graph_cache_hit": "Inductor cache hit, with the parts of its key",
    "fx_graph_cache_miss": "Inductor cache miss, with the parts of its key",
    "fx_graph_cache_bypass": "Inductor cache bypassed, with the reason",
    "aotautograd_cache_hit": "AOTAutograd cache hit",
    "aotautograd_cache_miss": "AOTAutograd cache miss",
    "aotautograd_cache_bypass": "AOTAutograd cache bypassed, with the reason",
    "inductor_collective_schedule": "The collectives in the order in which the generated code runs them",
    "inductor_runtime_and_tensor_meta": "How long the compiler expects each operation to take",
    "graph_execution": "The order in which compiled graphs ran",
}

KINDS: dict[str, str] = {
    "str": "File names, logged once and then referred to by number",
    "artifact": "Named files: caches, graphs, reasons, settings",
    "chromium_event": "Starts and ends of phases: the timeline",
    "dynamo_start": "The call stack when a frame was compiled",
    "describe_storage": "Storages of the tensors in a graph",
    "describe_tensor": "Tensors that enter a graph",
    "describe_source": "Where the tensors come from",
    "create_symbol": "A size that became a symbol",
    "create_unbacked_symbol": "A size that depends on data",
    "guard_added": "A guard on symbolic shapes, with its origin",
    "guard_added_fast": "A guard on symbolic shapes",
    "symbolic_shape_specialization": "A symbol that was specialized to a constant",
    "propagate_real_tensors": "A value that was taken from real data",
    "propagate_real_tensors_provenance": "A value that was taken from real data, with its origin",
    "expression_created": "A symbolic expression",
    "guard_on_data_dependent_error": "A decision that depends on data",
    "missing_fake_kernel": "An operator that cannot be traced: it has no fake kernel",
    "mismatched_fake_kernel": "An operator whose fake kernel disagrees with the real one",
    "exported_program": "The program that was exported",
    "export": "The beginning of an export",
    "dump_file": "Source of generated functions",
    "graph_dump": "Text that a backend logged",
    "link": "An address that the job logged",
    "aot_autograd_backward_compilation_metrics": "Metrics of the backward pass in old logs",
    "bwd_compilation_metrics_runtime": "Work that was done when the compiled backward code first ran",
    **FILES,
}

_HELP = """
<h3>Compile ids</h3>
<p><code>[x/y]</code> is one compilation: <b>x</b> numbers the frame: a Python function, or the rest of one
after a graph break; <b>y</b> counts how often that frame was compiled before. <code>[0/0]</code> is the first frame,
<code>[0/1]</code> the same frame recompiled, <code>[1/0]</code> another frame. A frame with many values of y
was recompiled many times; many values of x in one function mean graph breaks.</p>
<p><code>[x/y_z]</code>: tracing restarted <b>z</b> times, usually because of a graph break in a function that was being
inlined. <code>[!a/x/y]</code>: <b>a</b> numbers the backward pass that compiled autograd recorded, which is then
compiled as frame x. <code>[-/-]</code>: not part of a compilation.</p>
<h3>From Python to kernels</h3>
<ol class="phases">
<li>With compiled autograd, a backward pass is recorded first: <code>compiled_autograd_graph</code>.</li>
<li>Dynamo runs the function symbolically and captures <code>dynamo_output_graph</code>.</li>
<li>Under DDP the graph may be split into pieces: <code>optimize_ddp_split_graph</code> and its children; what follows
then happens once per piece.</li>
<li>AOTAutograd makes <code>aot_joint_graph</code> and splits it into <code>aot_forward_graph</code> and
<code>aot_backward_graph</code>; without gradients there is one <code>aot_inference_graph</code>.</li>
<li>Inductor's passes produce <code>inductor_post_grad_graph</code>.</li>
<li>Inductor writes <code>inductor_output_code</code>, a program that can also run on its own.</li>
</ol>
<h3>Files</h3>
<p>Not every job has all of them. The number at the end of a name counts the files of the log.</p>
<div class="wide"><table class="help"><tbody>{}</tbody></table></div>
<p class="faint">The log, and so this report, contains the model's code but no weights. Consider this before you share
it.</p>
"""


def about_file(name: str) -> str:
    """A numbered file of the report."""
    return about(name.rpartition("_")[0] or name)


@lru_cache(maxsize=4096)
def about(stem: str) -> str:
    """Looked up by the longest known prefix of the file's name: numbers and hashes follow it."""
    return FILES[max(known, key=len)] if (known := [known for known in FILES if stem.startswith(known)]) else ""


def help_html() -> Html:
    named = ((with_other_spelling(name), what) for name, what in FILES.items())
    rows = joined(markup("<tr><td><code>{}</code></td><td>{}</td></tr>", name, what) for name, what in named)
    return markup(_HELP, rows)

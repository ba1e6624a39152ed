"""Texts that torch.compile writes for people, as torch 2.13 words them, and as older versions did."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.read.compile_tables import error_columns
from rankscope.read.compile_text import classify_guard, parse_graph_break, parse_recompile_reasons, traceback_frames
from rankscope.simulate.compile_log import BREAK, TRAIN

Row = dict[str, Any]


def only_reason(text: str) -> Row:
    [row] = parse_recompile_reasons(text, [])
    return row


# Graph breaks


def test_a_graph_break_has_place_reason_explanation_hints_and_page() -> None:
    text = BREAK.format(file=TRAIN, line=12, reason="Tensor.item()", function="forward", code="y.item()")

    assert parse_graph_break(text) == {
        "file": TRAIN,
        "line": 12,
        "function": "forward",
        "code": "y.item()",
        "is_user": True,
        "reason": "Tensor.item()",
        "explanation": "Dynamo does not support tracing `Tensor.item()` with config.capture_scalar_outputs=False.",
        "hints": "Set `torch._dynamo.config.capture_scalar_outputs = True` to include this operation in the captured "
        "graph.",
        "break_id": "gb0124",
        "url": "https://example.org/gb/gb0124.html",
    }


def test_a_break_in_torch_names_the_users_line_that_led_there() -> None:
    row = parse_graph_break(
        "Graph break in user code at /site-packages/torch/nn/parallel/distributed.py:1600\n"
        "Graph Break Reason: Encountered graph break\n"
        "User code traceback:\n"
        '  File "/job/train.py", line 40, in step\n'
        "    return model(x)\n"
        '  File "/site-packages/torch/nn/parallel/distributed.py", line 1600, in _pre_forward\n'
        "    self.reducer.prepare()\n"
    )

    assert (row["is_user"], row["function"], row["code"]) == (False, "_pre_forward", "self.reducer.prepare()")
    assert (row["caller_file"], row["caller_line"]) == ("/job/train.py", 40)


@pytest.mark.parametrize(
    "text",
    [
        "Graph break in user code at /job/train.py:7\n"
        "Reason: Unsupported: call_function BuiltinVariable(print)\n"
        "User code traceback:\n"
        '  File "/job/train.py", line 7, in forward\n'
        "    print(x)\n",
        "Graph break: call_function BuiltinVariable(print) from user code at:\n"
        '  File "/job/train.py", line 90, in step\n'
        "    forward(x)\n"
        '  File "/job/train.py", line 7, in forward\n'
        "    print(x)\n",
    ],
    ids=["2.5", "2.4"],
)
def test_breaks_of_older_versions_are_understood(text: str) -> None:
    row = parse_graph_break(text)

    assert row["reason"] == "call_function BuiltinVariable(print)"
    assert (row["file"], row["line"], row["function"], row["code"]) == ("/job/train.py", 7, "forward", "print(x)")


@pytest.mark.parametrize("text", ["", "\n", "Graph break in user code at", "Explanation:", "Hint:\nHint:", "\x00"])
def test_a_break_that_says_little_is_still_a_break(text: str) -> None:
    row = parse_graph_break(text)

    assert row["is_user"] is False
    assert row["explanation"] == ""


def test_a_line_number_beyond_all_bounds_is_bounded() -> None:
    assert parse_graph_break(f"Graph break in user code at a.py:{10**30}")["line"] < 1 << 31


# Failed guards


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("tensor 'x' size mismatch at index 0. expected 2, actual 3", ("size", "x", 0, "2", "3")),
        ("tensor 'args[0]' size mismatch at index 1. expected 8, actual 12", ("size", "args[0]", 1, "8", "12")),
        ("tensor 'x' stride mismatch at index 0. expected 1, actual 2", ("stride", "x", 0, "1", "2")),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", ("dtype", "x", -1, "Float", "Double")),
        ("tensor 'x' rank mismatch. expected 1, actual 2", ("rank", "x", -1, "1", "2")),
        (
            "tensor 'x' requires_grad mismatch. expected requires_grad=0",
            ("gradient", "x", -1, "requires_grad=0", ""),
        ),
        (
            "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, ADInplaceOrView), actual "
            "DispatchKeySet(Meta, ADInplaceOrView)",
            ("state", "x", -1, "DispatchKeySet(CPU, ADInplaceOrView)", "DispatchKeySet(Meta, ADInplaceOrView)"),
        ),
        ("tensor 'L['x']' size mismatch at index 0. expected 2, actual 3", ("size", "x", 0, "2", "3")),
        ("o.mode == 'a'", ("value", "o.mode", -1, "'a'", "")),
        ("L['self'].mode == 'train'", ("value", "self.mode", -1, "'train'", "")),
        ("G['SCALE'] == 2", ("value", "SCALE", -1, "2", "")),
        ("times == 2", ("value", "times", -1, "2", "")),
        ("flag == True", ("value", "flag", -1, "True", "")),
        ("v is None", ("value", "v", -1, "None", "")),
        ("p.keywords['other'] == 1", ("value", "p.keywords['other']", -1, "1", "")),
    ],
)
def test_a_guard_tells_cause_subject_dimension_and_values(guard: str, expected: tuple[Any, ...]) -> None:
    row = classify_guard(guard)

    found = (row["cause"], row["subject"], row.get("dimension", -1), row["expected"], row.get("actual", ""))
    assert found == expected


@pytest.mark.parametrize(
    ("guard", "cause"),
    [
        ("GLOBAL_STATE changed: grad_mode ", "state"),
        ("___check_global_state()", "state"),
        ("len(d) != 1", "keys"),
        ("len(l) == 1", "keys"),
        ("not ___dict_contains('b', L['d'])", "keys"),
        ("___check_type_id(L['v'], 94567)", "type"),
        ("___check_obj_id(g.__code__, 140205343611440), type=<class 'code'>", "identity"),
        ("6 <= x.size()[0]", "size"),
        ("Eq(s48, 48)", "size"),
        ("2 <= L['x'].size()[1] <= 64", "size"),
        ("something torch will say one day", "other"),
        ("", "other"),
    ],
)
def test_every_guard_has_a_cause(guard: str, cause: str) -> None:
    assert classify_guard(guard)["cause"] == cause


@pytest.mark.parametrize(
    ("guard", "subject"),
    [
        ("len(d) != 1", "d"),
        ("len(items) == 1", "items"),
        ("___check_obj_id(g.__code__, 140205343611440), type=<class 'code'>", "g.__code__"),
        ("___check_obj_id(L['g'], 140205343611440)", "g"),
        ("___check_type_id(L['v'], 94567)", "v"),
        ("6 <= x.size()[0]", "x"),
        ("2 <= L['x'].size()[1] <= 64", "x"),
    ],
)
def test_a_guard_names_what_it_is_about(guard: str, subject: str) -> None:
    assert subject in classify_guard(guard)["subject"]


def test_the_code_behind_a_guard_is_found_in_its_comment() -> None:
    row = only_reason(f"10/0: 6 <= x.size()[0]  # if x.shape[0] > 5:  # {TRAIN}:29 in forward")

    assert (row["against"], row["guard"], row["dimension"]) == ("10/0", "6 <= x.size()[0]", 0)
    assert (row["file"], row["line"], row["function"], row["code"]) == (TRAIN, 29, "forward", "if x.shape[0] > 5:")


def test_torchs_own_place_behind_the_users_is_not_part_of_the_function() -> None:
    comment = f"# if x.shape[0] > 5:  # {TRAIN}:29 in forward (_dynamo/variables/tensor.py:2606 in evaluate_expr)"

    assert only_reason(f"10/0: 6 <= x.size()[0]  {comment}")["function"] == "forward"


def test_a_comment_without_a_place_is_no_part_of_the_guard() -> None:
    comment = "# duck sizing added this equality because these variables had the same size 8 (to avoid this, set y)"
    row = only_reason(f"13/0: x.size()[1] == x.size()[0]  {comment}")

    assert row["guard"] == "x.size()[1] == x.size()[0]"
    assert (row["cause"], row["expected"]) == ("size", "x.size()[0]")


def test_the_stack_tells_the_whole_path_where_the_comment_shortens_it() -> None:
    row = only_reason(
        "0/0: mode == 'down'          # return x * times  # me/job/train.py:43 in scaled\n"
        "User stack trace:\n"
        '  File "/home/job/train.py", line 43, in scaled\n'
        "    return x * times\n"
        '  File "/site-packages/torch/_dynamo/polyfills/builtins.py", line 63, in sum\n'
        "    return functools.reduce(operator.add, iterable, start)\n"
    )

    assert (row["file"], row["line"], row["function"]) == ("/home/job/train.py", 43, "scaled")
    assert (row["guard"], row["code"]) == ("mode == 'down'", "return x * times")


def test_torchs_hint_is_kept_apart_from_the_guard() -> None:
    row = only_reason("0/1: self.step == 1  # y = y + self.step  # /job/train.py:12 in forward (HINT: mark it (once))")

    assert row["guard"] == "self.step == 1"
    assert row["hint"] == "mark it (once)"
    assert row["function"] == "forward"


def test_one_text_may_hold_several_reasons() -> None:
    rows = list(parse_recompile_reasons("- 0/1: a == 1\n- 0/0: b == 2\n", []))

    assert [(row["against"], row["guard"]) for row in rows] == [("0/1", "a == 1"), ("0/0", "b == 2")]


def test_reasons_of_compiled_autograd_name_their_version() -> None:
    assert only_reason("!0/1/0: a == 1")["against"] == "!0/1/0"


# Tracebacks


def test_marks_under_a_line_are_not_its_code() -> None:
    lines = [
        '  File "a.py", line 3, in f',
        "    g(x)",
        "    ^^^^",
        '  File "b.py", line 4',
        '  File "c.py", line 5, in h',
    ]

    frames = traceback_frames(lines)

    assert [(frame.file, frame.line, frame.function, frame.code) for frame in frames] == [
        ("a.py", 3, "f", "g(x)"),
        ("b.py", 4, "", ""),
        ("c.py", 5, "h", ""),
    ]


def test_an_error_is_told_by_the_last_exception_and_the_users_line() -> None:
    row = error_columns(
        "Traceback (most recent call last):\n"
        '  File "/site-packages/torch/_dynamo/output_graph.py", line 9, in call\n'
        "    compile()\n"
        "RuntimeError: no such kernel\n"
        "\n"
        "The above exception was the direct cause of the following exception:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "/site-packages/torch/_dynamo/convert_frame.py", line 7, in _compile\n'
        "    inner()\n"
        "torch._dynamo.exc.BackendCompilerFailed: backend='mine' raised:\n"
        "RuntimeError: no such kernel\n"
        "\n"
        "from user code:\n"
        '   File "/job/train.py", line 30, in forward\n'
        "    return x + 1\n"
    )

    assert row["type"] == "torch._dynamo.exc.BackendCompilerFailed"
    assert (
        row["message"]
        == "torch._dynamo.exc.BackendCompilerFailed: backend='mine' raised:\nRuntimeError: no such kernel"
    )
    assert (row["file"], row["line"], row["function"], row["code"]) == ("/job/train.py", 30, "forward", "return x + 1")


@pytest.mark.parametrize("text", ["", "no traceback", "Traceback (most recent call last):", "from user code:"])
def test_an_error_without_a_place_is_still_an_error(text: str) -> None:
    assert error_columns(text)["kind"] == "dynamo_error"

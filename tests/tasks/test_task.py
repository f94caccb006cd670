"""A task and the checks on its text: everything is parsed, nothing is run."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.tasks import Task
from kernel_coder.tasks.task import reference_problem, solution_problem

GOOD = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def test_a_reference_is_never_executed() -> None:
    assert reference_problem("raise SystemExit('executed')\n" + GOOD) is None


def test_input_functions_may_be_assigned_and_the_class_may_have_any_name() -> None:
    source = "class SumAggregator: ...\nget_inputs = lambda: []\nget_init_inputs = lambda: []"
    assert reference_problem(source, "SumAggregator") is None
    assert reference_problem(source, "Model") == "the reference has no class Model"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Model: ...\ndef get_init_inputs(): ...", "the reference has no function get_inputs"),
        ("class Model: ...\ndef get_inputs(): ...", "the reference has no function get_init_inputs"),
        ("def Model(): ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...", "the reference has no class Model"),
        ("if True:\n    " + GOOD.splitlines()[0], "the reference has no class Model"),
        ("class Model(:", "the reference does not parse: invalid syntax (line 1)"),
        ("def f():\nreturn 1", "the reference does not parse: expected an indented block"),
        ("x = 1\0", "the reference does not parse: source code string cannot contain null bytes"),
        ("(" * 100_000, "the reference does not parse: too many nested parentheses"),
        ("-" * 200_000 + "1", "the reference does not parse: nested too deeply"),
        ("x = '\ud800'", "the reference does not parse: "),
    ],
)
def test_broken_reference_gives_a_reason(source: str, reason: str) -> None:
    assert str(reference_problem(source)).startswith(reason)


def test_invalid_escapes_in_a_docstring_raise_no_warning() -> None:
    assert reference_problem('class Model:\n    "\\d \\w"\n' + "\n".join(GOOD.splitlines()[1:])) is None


def test_solution_must_define_model_new() -> None:
    assert solution_problem("class ModelNew: ...") is None
    assert solution_problem("def ModelNew(): ...") == "the solution has no class ModelNew"
    assert solution_problem("class ModelNew(") == "the solution does not parse: '(' was never closed (line 1)"


@settings(deadline=None)
@given(st.text(max_size=200))
def test_reference_problem_of_any_text_is_a_reason_and_never_an_exception(text: str) -> None:
    assert isinstance(reference_problem(text), str)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": " "}, "id of a task must be text that is not empty; got ' '"),
        ({"reference": ""}, "reference of a task must be text that is not empty; got ''"),
        ({"backend": "tritn"}, "backend of task t must be one of triton, cuda, cpp, torch; got 'tritn'"),
        ({"precision": "fp8"}, "precision of task t must be one of fp64, fp32, tf32, fp16, bf16; got 'fp8'"),
    ],
)
def test_invalid_fields_of_a_task_are_refused(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"of a? ?task") as caught:
        Task(**{"id": "t", "source": "test", "reference": GOOD, **changes})
    assert str(caught.value) == sentence


def test_a_task_is_frozen_hashable_and_survives_pickling() -> None:
    task = Task(id="t", source="test", reference=GOOD, metadata={"stars": [1]})
    assert pickle.loads(pickle.dumps(task)) == task
    assert {task: 1}[task] == 1
    with pytest.raises(AttributeError):
        task.id = "u"  # type: ignore[misc]

"""Prompts are byte-stable and complete, and errors explain mistakes in templates."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.prompts import build_messages, messages, template_names
from kernel_coder.prompts.bare import bare
from kernel_coder.tasks import Task
from kernel_coder.tasks.task import reference_problem, solution_problem

TASK = Task(
    id="golden",
    source="test",
    reference="\r\nimport torch.nn as nn\r\n\r\nclass Square(nn.Module):\r\n    def forward(self, x): return x * x\r\n",
    entry_point="Square",
)

# A changed template changes the prompts of every run. Note the new hash and the reason in the change log.
GOLDEN = {
    ("bare", False): "5eaa23ff8119121d40205f7091dd1a43ec0d7e6aea217a0f8c781efb726a4a06",
    ("bare", True): "f2e853dbaeffce58c9cad68f18e7f563ed56942d75fdb576cc0c34d3b64309df",
    ("kernel_coder", False): "918297bf73fa7a358f149a598715db2ac0917d2c0f4527f0584c3b08eb1955a5",
    ("kernel_coder", True): "306e53a12642ed5ee4e5074cae66da9ad2de952262701f32ef4f844cb2fec911",
    ("kernelbench", False): "9847b4161ec67748aefc4d18d8cf2585932fc99f4f0a53e952eec7bee85f3abe",
    ("kernelbench", True): "c79cb1ff23a78e1cd9c62ca4dc032c00f33b23ffbc852a43a958468593a660c7",
    ("nano", False): "5b0e6339b9b32be46392abb28b58598e6b9110e5fd97c2192da910f168eed3e5",
    ("nano", True): "6dd357884e723e0ba0ec6d65411ead2df6efe6e14fb16f2320a352a88120f251",
}


def digest(template: str, one_shot: bool) -> str:
    text = json.dumps(build_messages(TASK, template, one_shot=one_shot), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("template", template_names())
def test_every_packaged_template_is_byte_stable(template: str, one_shot: bool) -> None:
    assert digest(template, one_shot) == GOLDEN[template, one_shot]


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("template", template_names())
def test_a_prompt_holds_the_module_and_names_the_class_to_write(template: str, one_shot: bool) -> None:
    text = build_messages(TASK, template, one_shot=one_shot)[-1]["content"]
    reference = TASK.reference.replace("\r\n", "\n").strip()
    reference = bare(reference) if template == "bare" else reference
    assert f"```python\n{reference}\n```" in text
    assert "`Square`" in text
    assert "ModelNew" in text
    assert "Triton" in text
    assert ("add_kernel" in text) == one_shot
    assert "\r" not in text
    assert "\n\n\n\n" not in text.replace(reference, "")
    assert text == text.strip()


def test_the_default_shows_the_form_that_the_format_reward_asks_for() -> None:
    system, user = build_messages(TASK)
    assert (system["role"], user["role"]) == ("system", "user")
    form = "<thinking>\nyour reasoning\n</thinking>\n<answer>\n```python\n"
    assert form in user["content"]
    assert user["content"].endswith("```\n</answer>")
    for tag in ("<thinking>", "</thinking>", "<answer>", "</answer>"):
        assert tag in system["content"]


def test_backend_and_precision_are_in_the_prompt() -> None:
    task = Task(id="t", source="test", reference="class Model: ...", backend="cuda", precision="bf16")
    text = build_messages(task)[-1]["content"]
    assert "CUDA C++" in text
    assert "bf16" in text
    assert "Triton" not in text


def test_a_module_with_fences_in_it_gets_a_longer_fence() -> None:
    task = Task(id="t", source="test", reference="'''\n```\nx\n```\n'''")
    assert "````python\n'''\n```" in build_messages(task)[-1]["content"]


@settings(deadline=None)
@given(st.text(min_size=1, max_size=60).filter(str.strip))
def test_a_module_is_never_read_as_a_template(text: str) -> None:
    reference = text + "{{ task.id }} {% raw %} {# gone #}"
    content = build_messages(Task(id="t", source="test", reference=reference))[-1]["content"]
    assert "{{ task.id }} {% raw %} {# gone #}" in content


def test_the_example_is_a_task_with_its_solution() -> None:
    folder = messages.TEMPLATES / "examples"
    reference, solution = ((folder / name).read_text() for name in ("add_reference.txt", "add_solution.txt"))
    assert reference_problem(reference) is None
    assert solution_problem(solution) is None
    assert "triton.jit" in ast.unparse(ast.parse(solution))


# Templates of the user's own


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.jinja"
    path.write_text(text)
    return path


def test_a_template_may_come_from_a_file_and_begin_the_answer(tmp_path: Path) -> None:
    path = write(tmp_path, "{% block assistant %}<thinking>{% endblock %}{% block user %}{{ task.id }}{% endblock %}")
    assert build_messages(TASK, path) == [
        {"role": "user", "content": "golden"},
        {"role": "assistant", "content": "<thinking>"},
    ]


def test_empty_message_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "{% block system %}\n{% endblock %}{% block user %}x{% endblock %}")
    assert [message["role"] for message in build_messages(TASK, path)] == ["user"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "{% block user %}{{ refrence }}{% endblock %}",
            "cannot be filled in for task golden: 'refrence' is undefined",
        ),
        ("{% block user %}{% endblok %}", "is not a Jinja template: "),
        ("plain text", "needs a block user, and otherwise only system and assistant; it has none"),
        ("{% block usr %}{% endblock %}", "needs a block user, and otherwise only system and assistant; it has usr"),
        (
            "{% block user %}{{ task.__class__.__mro__ }}{% endblock %}",
            "cannot be filled in for task golden: access to",
        ),
    ],
)
def test_error_for_a_wrong_template_explains_the_mistake(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prompt template .*mine\.jinja") as caught:
        build_messages(TASK, write(tmp_path, text))
    assert sentence in str(caught.value)


def test_error_for_an_unknown_template_names_the_known_templates() -> None:
    with pytest.raises(ValueError, match="neither one of bare, kernel_coder, kernelbench, nano nor a file"):
        build_messages(TASK, "kernelcoder")


def test_one_shot_example_is_refused_for_another_backend() -> None:
    task = Task(id="t", source="test", reference="class Model: ...", backend="cpp")
    with pytest.raises(ValueError, match="the one-shot example is written in Triton; task t asks for cpp"):
        build_messages(task, one_shot=True)

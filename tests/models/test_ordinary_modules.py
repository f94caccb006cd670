"""With sixteen answers each, the packaged model solves most of ten hand-written modules that it has never seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_coder import ops
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.defaults import defaults_of
from kernel_coder.policy.model import load_policy
from kernel_coder.prompts import build_messages, encode_prompt
from kernel_coder.rollout import Sampling
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.tasks import Task, load_tasks

ROOT = Path(__file__).parents[2]
ANSWERS = 16


def solved(tasks: list[Task], answers: int) -> list[str]:
    """The ids of the tasks that a first answer of the packaged model solves, sampled as ``refine`` samples."""
    policy = load_policy(ModelConfig(name_or_path="nano", device="cpu"))
    asked = [task for task in tasks for _ in range(answers)]
    prompts = [encode_prompt(policy.tokenizer, build_messages(task, "nano")) for task in asked]
    engine = TransformersEngine(policy.model, policy.tokenizer)
    sampling = Sampling(max_completion_length=384, temperature=defaults_of("nano")["temperature"], top_p=0.97)
    turns = engine.generate(prompts, sampling, list(range(len(prompts))))
    found = [ops.parse_response(turn.text) for turn in turns]
    tried = {
        (task.id, answer.code): task for task, answer in zip(asked, found, strict=True) if answer.ok and answer.code
    }
    config = JudgeConfig()
    with Judge("cpu", "triton", config=config) as judge:
        verdicts = judge.evaluate_many((task, code) for (_, code), task in tried.items())
        return sorted({key[0] for key, verdict in zip(tried, verdicts, strict=True) if verdict.correct})


@pytest.mark.long
def test_most_of_ten_ordinary_modules_are_solved() -> None:
    """With the seeds tried so far, the model solves eight. Fewer than seven would mean that the model got worse."""
    tasks = list(load_tasks(str(Path(__file__).parent / "ordinary")))
    assert len(tasks) == 10
    found = solved(tasks, ANSWERS)
    assert len(found) >= 7, found


@pytest.mark.long
def test_module_of_the_readme_is_solved() -> None:
    tasks = [task for task in load_tasks(str(ROOT / "examples")) if task.id.endswith("/learnt_scale")]
    assert len(solved(tasks, 8)) == len(tasks) == 1

"""What the adapters do, without any of the libraries: a stand-in for each class that they extend."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")
sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from kernel_coder.integrations import mcp, verl
from kernel_coder.integrations.scoring import Episode, reward_set, rows, task_of, verdicts_on
from kernel_coder.integrations.trl import JudgedReward, kernel_environment, kernel_rollout
from kernel_coder.judge import JudgeConfig, Outcome, Verdict, example_verdict
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.prompts import build_answer
from kernel_coder.rollout import Turn
from kernel_coder.run.hashes import sha256_text
from stub_service import StubJudge, served

REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
RIGHT, WRONG = build_answer("class ModelNew: ..."), build_answer("class ModelNew: ...  # wrong")
UNSCORED = build_answer("class ModelNew: ...  # harness")


class Judge:
    """Correct, unless the candidate says ``# wrong`` or ``# harness``."""

    device, backend, profile = "cpu", None, "none"
    versions: dict[str, str] = {}  # noqa: RUF012
    config = JudgeConfig(workers=2)

    def __init__(self) -> None:
        self.judged: list[str] = []

    def evaluate(self, task: Any, candidate: str, backend: str | None = None) -> Verdict:
        self.judged.append(candidate)
        outcome = Outcome.WRONG_OUTPUT if "# wrong" in candidate else Outcome.CORRECT
        outcome = Outcome.HARNESS_FAILED if "# harness" in candidate else outcome
        return example_verdict(
            outcome, task=task.id, task_hash=sha256_text(task.reference), candidate_hash=sha256_text(candidate)
        )

    def evaluate_many(self, pairs: Any, **_: Any) -> Iterator[Verdict]:
        return (self.evaluate(*pair) for pair in pairs)


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_verdicts_come_in_order_and_equal_code_is_judged_once(judge: Judge) -> None:
    found = verdicts_on(judge, [task_of(REFERENCE)] * 4, [RIGHT, "nothing", WRONG, RIGHT])
    assert [one.outcome.value for one in found] == ["correct", "format_error", "wrong_output", "correct"]
    assert len(judge.judged) == 2


def test_a_trl_reward_is_async_logs_its_parts_and_never_scores_a_failure_of_the_judge(judge: Judge) -> None:
    import inspect

    parts = [{"name": "format", "weight": 0.1}, {"name": "correct"}]
    reward = JudgedReward(judge, parts)
    assert inspect.iscoroutinefunction(reward.__call__)
    logged: dict[str, float] = {}
    completions = [[{"role": "assistant", "content": text}] for text in (RIGHT, WRONG, UNSCORED, "nothing")]
    found = asyncio.run(
        reward(
            ["?"] * 4,
            completions,
            reference=[REFERENCE] * 4,
            completion_ids=[[1]] * 4,
            log_metric=logged.__setitem__,
            trainer_state=object(),
        )
    )
    assert found[2] is None
    assert found[0] > found[1] >= found[3]  # type: ignore[operator]
    assert logged["kernel_coder/unscored"] == 0.25
    assert logged["kernel_coder/correct"] == pytest.approx(1 / 3)


class Engine:
    """Returns the prepared answers in order."""

    def __init__(self, tokenizer: Any, texts: list[list[str]]) -> None:
        self.tokenizer, self.texts = tokenizer, texts

    def generate(self, prompts: Any, sampling: Any, seeds: Any, *, poll: Any = None) -> list[Turn]:
        assert len(set(seeds)) == len(seeds), "every answer has random numbers of its own"
        made = []
        for ids, text in zip(prompts, self.texts.pop(0), strict=True):
            own = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
            made.append(Turn(tuple(ids), tuple(own), tuple([-0.5] * len(own)), text, "stop"))
        return made


def test_a_trl_conversation_is_one_sequence_whose_feedback_is_masked(judge: Judge) -> None:
    tokenizer = tiny_tokenizer()
    table = rows("packaged:pointwise", "nano")[:2]
    tasks = [task_of(row["reference"], task_id=row["task_id"]) for row in table]
    engine = Engine(tokenizer, [[WRONG, RIGHT], [RIGHT]])
    rollout = kernel_rollout(
        tasks, judge, max_turns=3, prompt_template="nano", feedback_template="nano", make_engine=lambda _: engine
    )
    trainer = SimpleNamespace(
        args=SimpleNamespace(max_completion_length=99, temperature=1.0, top_p=1.0, top_k=None, seed=1),
        processing_class=tokenizer,
        state=SimpleNamespace(global_step=3),
        accelerator=SimpleNamespace(process_index=0),
        model=SimpleNamespace(training=True),
    )
    made = rollout([row["prompt"] for row in table], trainer)
    assert made["turns"] == [2, 1]
    assert [one.outcome for one in made["verdict"]] == [Outcome.CORRECT] * 2
    assert made["answer"] == [RIGHT, RIGHT]
    for ids, mask, logprobs in zip(made["completion_ids"], made["env_mask"], made["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        assert [value == -0.5 for value in logprobs] == [bool(one) for one in mask]
    text = tokenizer.decode(made["completion_ids"][0])
    assert text.index("# wrong") < text.index("wrong_output") < text.rindex("class ModelNew")
    assert 0 in made["env_mask"][0]
    assert 0 not in made["env_mask"][1]
    with pytest.raises(ValueError, match="belongs to none of the tasks"):
        rollout([[{"role": "user", "content": "Hello"}]], trainer)


def test_the_tool_of_trl_judges_a_bounded_number_of_times(judge: Judge) -> None:
    environment = kernel_environment(judge, [{"name": "correct"}], max_attempts=2)()
    environment.reset(reference=REFERENCE, solution=None, prompt=[])
    assert environment.get_reward() == 0.0, "no attempt"
    assert environment.judge_kernel("class ModelNew: ...  # wrong").startswith("wrong_output")
    assert environment.judge_kernel("class ModelNew: ...").startswith("correct")
    assert environment.judge_kernel("class ModelNew: ... # again") == "All 2 attempts are used up."
    assert environment.get_reward() > 0.5
    environment.reset(reference=REFERENCE)
    environment.judge_kernel("class ModelNew: ...  # harness")
    assert environment.get_reward() is None


def test_an_episode_ends_with_a_correct_or_unscored_or_last_answer(judge: Judge) -> None:
    rewards = reward_set("kernel_coder")
    episode = Episode(judge, task_of(REFERENCE), rewards, max_turns=3)
    first, second = episode.answer(WRONG), episode.answer(RIGHT)
    assert (first.done, second.done) == (False, True)
    assert first.feedback[0]["role"] == "user"
    assert second.feedback == ()
    unscored = Episode(judge, task_of(REFERENCE), rewards, max_turns=3).answer(UNSCORED)
    assert (unscored.done, unscored.reward) == (True, None)
    assert Episode(judge, task_of(REFERENCE), rewards).answer(WRONG).done


def test_verl_asks_the_service_and_scores_a_failure_of_the_judge_with_the_mean() -> None:
    async def scored(url: str) -> list[dict[str, Any]]:
        return [
            await verl.compute_score("k", text, REFERENCE, {"backend": "triton"}, url=url, rewards="kernel_coder")
            for text in (RIGHT, "nothing", UNSCORED)
        ]

    with served(StubJudge()) as url:
        right, nothing, unscored = asyncio.run(scored(url))
    assert right["score"] > nothing["score"]
    assert unscored["score"] == pytest.approx((right["score"] + nothing["score"]) / 2)
    assert (right["unscored"], unscored["unscored"]) == (0.0, 1.0)


def test_skyrl_gym_gets_numbers_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    class BaseTextEnv:
        def __init__(self) -> None:
            self.turns, self.max_turns = 0, 1

    base = ModuleType("skyrl_gym.envs.base_text_env")
    base.BaseTextEnv, base.BaseTextEnvStepOutput = BaseTextEnv, dict  # type: ignore[attr-defined]
    for name in ("skyrl_gym", "skyrl_gym.envs"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "kernel_coder.integrations.skyrl", raising=False)
    from kernel_coder.integrations.skyrl import KernelEnv

    with served(StubJudge()) as url:
        row = {"reward_spec": {"ground_truth": REFERENCE}, "extra_info": {"backend": "triton"}}
        env = KernelEnv({"url": url, "rewards": "kernel_coder", "max_turns": 3}, row)
        first, second = env.step("nothing"), env.step(UNSCORED)
    assert (first["done"], first["observations"][0]["role"]) == (False, "user")
    assert second["done"]
    assert second["metadata"]["unscored"]
    assert second["reward"] == first["reward"], "a failure of the judge changes no reward"
    sys.modules.pop("kernel_coder.integrations.skyrl", None)


def test_search_says_why_it_finds_nothing(tmp_path: Path) -> None:
    assert "start the server with --library" in mcp.search(None, "softmax", 3)["note"]
    assert mcp.search(str(tmp_path / "none.sqlite"), "softmax", 3)["note"]

"""Training on conversations: advantages of turns, turns that share a forward pass, and runs that are resumed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_coder.judge.supervisor.open
import pytest
import torch
from fake_judge import FakeJudge
from kernel_coder import reference
from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.ops import LossSpec
from kernel_coder.policy.model import Policy
from kernel_coder.prompts import Message
from kernel_coder.rewards import RewardSet
from kernel_coder.rollout import Conversation, FollowUp, Rollout, Sampling, Turn, converse
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.run.errors import EXIT_STOPPED, UsageError
from kernel_coder.tasks import Task
from kernel_coder.train.__main__ import main
from kernel_coder.train.batch import (
    Batch,
    by_update,
    collate,
    denominator,
    finite_or_nan,
    forward_passes,
    forward_rows,
    make_batch,
)
from kernel_coder.train.config import AdvantagesConfig, ShareRejectionConfig, load_config
from kernel_coder.train.groups import Answers, with_groups
from kernel_coder.train.metrics import turn_metrics
from kernel_coder.train.prompts import Prompt
from kernel_coder.train.scoring import rejected_by_share, reward, thinking_length
from kernel_coder.train.update import backward
from test_judged_training import mistake
from tiny_run import flags, records, summary, timeless

TOKENIZER = tiny_tokenizer()
TASK = Task(id="t", source="test", reference="class Model: ...")
COUNTS = [3, 1, 2, 3]
REWARDS = [0.0, 1.0, 0.5, 2.0, 0.25, None, 1.0, 0.0, 1.5]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(tiny_model(len(TOKENIZER), hidden=32).double().eval(), TOKENIZER)


@pytest.fixture(scope="module")
def rollouts(policy: Policy) -> list[Rollout]:
    """Four conversations of 3, 1, 2 and 3 turns."""
    messages = [Message(role="user", content="def f(x):")]
    ids = tuple(TOKENIZER.encode(TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))
    start = [Conversation(Prompt(TASK, messages, ids), lambda turn, i=i: 10 * i + turn) for i in range(4)]  # type: ignore[misc]
    going = FollowUp(tokenizer=TOKENIZER, max_turns=3, template="nano")

    def follow(one: Conversation) -> Any:
        return going(one) if len(one.turns) < COUNTS[start.index(one)] else None

    def ask(task: Task, answer: str) -> Any:
        from concurrent.futures import Future

        done: Future[Verdict] = Future()
        done.set_result(example_verdict("timeout", feedback="slow"))
        return done

    engine = TransformersEngine(policy.model, TOKENIZER)
    return converse(engine, start, Sampling(max_completion_length=5), ask=ask, follow_up=follow)


def turns_of(rollouts: list[Rollout]) -> list[Turn]:
    return [turn for rollout in rollouts for turn in rollout.turns]


def batch_of(rollouts: list[Rollout], **config: Any) -> Batch:
    given = AdvantagesConfig.model_validate({"mode": "trloo", "gamma": 0.4, **config})
    counts = [len(rollout.turns) for rollout in rollouts]
    return make_batch(turns_of(rollouts), finite_or_nan(REWARDS), given, 2, mask_truncated=False, turn_counts=counts)


# ---- advantages ------------------------------------------------------------------------------------------------------


def test_trloo_advantages_equal_values_computed_by_hand(rollouts: list[Rollout]) -> None:
    """Returns of group 1: 0.48, 1.2, 0.5 and 2.0. Returns of group 2: NaN, NaN and 1.24, 0.6, 1.5."""
    batch = batch_of(rollouts)
    expected = [0.48 - 2.0, 1.2, 0.5, 2.0 - 0.48, 0.0, 0.0, 1.0 + 0.4 * 0.6, 0.6, 1.5]
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert batch.counted.tolist() == [True] * 5 + [False] + [True] * 3
    assert batch.rollouts == (0, 0, 0, 1, 2, 2, 3, 3, 3)


@pytest.mark.parametrize("returns", ["sum", "max", "last", "per_turn"])
@pytest.mark.parametrize("baseline", ["turn", "group"])
@pytest.mark.parametrize("mode", ["grpo", "rloo", "trloo", "loo_std", "maxrl"])
def test_advantages_of_every_config_combination_equal_the_reference(
    rollouts: list[Rollout], mode: str, baseline: str, returns: str
) -> None:
    batch = batch_of(rollouts, mode=mode, baseline=baseline, turn_returns=returns)
    wanted = reference.turn_advantages(
        finite_or_nan(REWARDS),
        2,
        gamma=0.4,
        mode={"rloo": "trloo"}.get(mode, mode),
        returns=returns,
        cu_turns=torch.tensor([0, *COUNTS]).cumsum(0),
        baseline=baseline,
        singleton="reward" if mode == "trloo" else "zero",
    )
    torch.testing.assert_close(batch.advantages, wanted, rtol=1e-12, atol=1e-12)


def test_one_turn_conversations_have_the_advantages_of_single_answers(rollouts: list[Rollout]) -> None:
    turns = turns_of(rollouts)[:8]
    rewards = finite_or_nan(REWARDS[:8])
    for mode in ("grpo", "rloo", "trloo", "maxrl"):
        config = AdvantagesConfig.model_validate({"mode": mode})
        one = make_batch(turns, rewards, config, 4, mask_truncated=False)
        same = make_batch(turns, rewards, config, 4, mask_truncated=False, turn_counts=[1] * 8)
        torch.testing.assert_close(one.advantages, same.advantages, rtol=1e-12, atol=1e-12)


# ---- forward passes --------------------------------------------------------------------------------------------------


def gradients(policy: Policy, batch: Batch, spec: LossSpec, size: int) -> torch.Tensor:
    policy.model.zero_grad(set_to_none=True)
    backward(policy, batch, forward_passes(batch, spec, 1, size)[0], spec, 1.0, denominator(batch, spec, 1))
    return torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


@pytest.mark.parametrize("preset", ["grpo", "dapo", "gspo", "dr_kernel"])
def test_turns_in_one_row_give_the_gradients_of_turns_in_separate_rows(
    policy: Policy, rollouts: list[Rollout], preset: str
) -> None:
    spec = LossSpec.preset(preset)
    batch = batch_of(rollouts)
    apart = replace(batch, rollouts=None)
    assert forward_rows(batch, range(9)) == [[0, 1, 2], [3], [4, 5], [6, 7, 8]]
    assert forward_rows(apart, range(9)) == [[i] for i in range(9)]
    whole = gradients(policy, apart, spec, 9)
    assert whole.norm() > 0
    for size in (1, 3, 4):
        assert (gradients(policy, batch, spec, size) - whole).norm() / whole.norm() < 1e-6


def test_turns_without_advantage_are_left_out_of_their_row(policy: Policy, rollouts: list[Rollout]) -> None:
    batch = batch_of(rollouts)
    batch.advantages[[1, 2]] = 0.0
    spec = LossSpec.preset("dapo")
    passes = forward_passes(batch, spec, 1, 2)
    assert passes == [[[0, 3], [6, 7, 8]]]  # turns 4 and 5 have no known return
    micro = collate(batch.select(passes[0][0]), 0, torch.device("cpu"))
    assert micro.ids.shape[1] == max(len(batch.turns[i].prompt_ids + batch.turns[i].completion_ids) for i in (0, 3))
    batch.advantages[1], batch.advantages[0] = 1.0, 0.0
    assert forward_rows(batch, [0, 2]) == [[0, 2]]  # turn 1 lies in between, and the prompt of turn 2 contains it
    assert gradients(policy, batch, spec, 2).norm() > 0


def test_turns_of_a_conversation_stay_in_one_update(rollouts: list[Rollout]) -> None:
    batch = batch_of(rollouts)
    assert by_update(batch, range(9), 2) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert [len(part) for part in by_update(batch, range(9), 4)] == COUNTS
    assert denominator(batch, LossSpec.preset("grpo"), 2) == 8 / 2


def test_thinking_and_answer_have_their_own_advantages(policy: Policy, rollouts: list[Rollout]) -> None:
    turns, counts = turns_of(rollouts), COUNTS
    config = AdvantagesConfig(mode="trloo", gamma=0.4)
    thought = finite_or_nan([1.0, 0.0, 2.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    first = [min(2, len(turn.completion_ids)) for turn in turns]
    batch = make_batch(
        turns,
        finite_or_nan(REWARDS),
        config,
        2,
        mask_truncated=False,
        turn_counts=counts,
        thinking=(thought, first),
    )
    assert batch.token_advantages is not None
    answers = batch_of(rollouts).advantages
    plans = make_batch(turns, thought, config, 2, mask_truncated=False, turn_counts=counts).advantages
    for i, turn in enumerate(turns):
        rest = len(turn.completion_ids) - first[i]
        assert batch.token_advantages[i].tolist() == [float(plans[i])] * first[i] + [float(answers[i])] * rest
    assert not batch.counted[5]
    micro = collate(batch, 0, torch.device("cpu"))
    assert micro.advantages.shape == micro.targets.shape
    # Equal rewards for thinking and answer give the gradients of a single reward.
    spec = LossSpec.preset("dapo")
    same = make_batch(
        turns,
        finite_or_nan(REWARDS),
        config,
        2,
        mask_truncated=False,
        turn_counts=counts,
        thinking=(finite_or_nan(REWARDS), first),
    )
    whole = gradients(policy, batch_of(rollouts), spec, 4)
    assert (gradients(policy, same, spec, 4) - whole).norm() / whole.norm() < 1e-6
    assert (gradients(policy, batch, spec, 4) - whole).norm() / whole.norm() > 1e-2


@pytest.mark.parametrize(
    ("begun", "text", "thinking"),
    [
        ("", "<thinking>\nHm.\n</thinking>\n<answer>x</answer>", "<thinking>\nHm.\n</thinking>"),
        ("<thinking>\n", "Hm. ü\n</thinking>\n<answer>x</answer>", "Hm. ü\n</thinking>"),
        ("", "<thinking>\nfor ever", "<thinking>\nfor ever"),
        ("", "<answer>x</answer>", ""),
        ("<thinking>\n</thinking>\n", "<answer>x</answer>", ""),
    ],
)
def test_thinking_ends_with_the_token_that_closes_it(begun: str, text: str, thinking: str) -> None:
    ids = tuple(TOKENIZER.encode(text))
    turn = Turn((), ids, (0.0,) * len(ids), text, "stop")
    count = thinking_length(turn, begun, TOKENIZER.decode)
    said = TOKENIZER.decode(ids[:count])
    assert said.startswith(thinking)
    assert not TOKENIZER.decode(ids[: max(count - 1, 0)]).startswith(thinking) or not thinking


# ---- what is measured ------------------------------------------------------------------------------------------------


def conversation(outcomes: list[str], task: Task = TASK) -> Rollout:
    turns = tuple(Turn((k,), (1,), (0.0,), f"{k}", "stop") for k in range(len(outcomes)))
    shown = tuple((Message(role="user", content="?"),) for _ in outcomes)
    return Rollout(task, turns, shown, tuple(example_verdict(outcome) for outcome in outcomes))


def test_correct_by_turn_counts_conversations_and_not_answers() -> None:
    some = [
        conversation(["timeout", "correct", "timeout"]),
        conversation(["correct"]),
        conversation(["harness_failed"]),
        conversation(["timeout", "timeout", "correct"]),
        conversation(["timeout"]),
    ]
    found = turn_metrics(some, [0.0, 1.0, 0.0, 1.0, None, 0.0, 0.5, 1.0, 0.0], 3)
    assert found["correct_by_turn/1"] == pytest.approx(1 / 4)
    assert found["correct_by_turn/2"] == pytest.approx(2 / 4)
    assert found["correct_by_turn/3"] == pytest.approx(3 / 4)
    assert [found[f"turns/count_{t}"] for t in (1, 2, 3)] == [5, 2, 2]
    assert found["reward_by_turn/1"] == pytest.approx(1 / 4)
    assert found["reward_by_turn/2"] == pytest.approx(1.5 / 2)
    assert found["turns/mean"] == pytest.approx(9 / 5)
    assert found["turns/out_of_context"] == 1  # the last one ended early without a correct answer
    assert turn_metrics(some, [0.0] * 9, 1) == {}


def answers(outcomes: list[list[str]]) -> Answers:
    group = 2
    rollouts = [conversation(one, replace(TASK, id=f"{i // group}")) for i, one in enumerate(outcomes)]
    table = reward(RewardSet([{"name": "correct", "required": True}]), rollouts, step=0)
    prompts = tuple(Prompt(rollout.task, [], ()) for rollout in rollouts[::group])
    return Answers(prompts, tuple(rollouts), table)


def test_groups_of_conversations_are_flat_successful_and_replaced_as_a_whole() -> None:
    found = answers([["timeout", "correct"], ["timeout", "correct"], ["timeout"], ["timeout", "timeout"]])
    assert found.flat() == [0]
    assert found.successes(1.0) == [[True, True], [False, False]]
    assert answers([["harness_failed"], ["timeout", "harness_failed"]]).successes(1.0) == [[False]]
    other = answers([["correct"], ["timeout", "timeout", "timeout"]])
    both = with_groups(found, [0], other, [0])
    assert [len(rollout.turns) for rollout in both.rollouts] == [1, 3, 1, 2]
    assert both.table.total == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert both.bounds == [0, 1, 4, 5, 7]


def test_correct_answers_with_a_small_kernel_share_are_left_out_at_random(rollouts: list[Rollout]) -> None:
    def shares(*values: float, outcome: str = "correct", **more: Any) -> Rollout:
        one = conversation([outcome] * len(values))
        return replace(one, verdicts=tuple(example_verdict(outcome, kernel_share=v, **more) for v in values))

    def left_out(*some: Rollout, **rule: Any) -> list[bool] | None:
        given = {"threshold": 0.3, "width": 0.1, **rule}
        return rejected_by_share(ShareRejectionConfig(**given), some, (1, 2))

    assert left_out(shares(0.0, 0.3, 0.4, 1.0)) == [True, True, False, False]
    assert left_out(shares(0.0, 0.3, outcome="wrong_output")) == [False, False]
    assert left_out(shares(0.1, 0.2, speedup=2.0), keep_from_speedup=1.5) == [False, False]
    assert left_out(shares(0.1), threshold=None) is None
    some = left_out(*[shares(*[0.325] * 50)] * 8)
    assert some is not None
    assert 0.65 < sum(some) / len(some) < 0.85  # 0.75 is expected
    assert some == left_out(*[shares(*[0.325] * 50)] * 8)
    with pytest.raises(UsageError, match="the judge's profile of a GPU"):
        left_out(conversation(["correct"]))
    batch = make_batch(
        turns_of(rollouts),
        finite_or_nan(REWARDS),
        AdvantagesConfig(mode="trloo", gamma=0.4),
        2,
        mask_truncated=False,
        turn_counts=COUNTS,
        rejected=[True] + [False] * 8,
    )
    assert torch.equal(batch.advantages, batch_of(rollouts).advantages)  # rejected turns stay in the baseline
    assert batch.counted.tolist() == [False, *batch_of(rollouts).counted.tolist()[1:]]


# ---- runs ------------------------------------------------------------------------------------------------------------

OUTCOMES = ("correct", "wrong_output", "compile_error", "timeout", "harness_failed", "correct")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeJudge]]:
    """A fake judge, and a model whose text differs in every turn. One text in six holds no code."""
    monkeypatch.setattr(kernel_coder.judge.supervisor.open, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    sampled = TransformersEngine.generate

    def generate(self: TransformersEngine, *given: Any, **more: Any) -> list[Turn]:
        return [replace(turn, text=text_of(turn)) for turn in sampled(self, *given, **more)]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    yield FakeJudge.made
    assert not any(judge.is_open for judge in FakeJudge.made)


def text_of(turn: Turn) -> str:
    number = zlib.crc32(repr(turn.completion_ids).encode())
    if number % 6 == 5:
        return "I do not know."
    return (
        f"<thinking>{number}</thinking><answer>```python\n# outcome: {OUTCOMES[number % 5]}\n# {number}\n```</answer>"
    )


TURNS = {
    "rewards": "kevin",
    "judge__device": "cpu",
    "rollout__max_turns": 3,
    "rollout__feedback_template": "nano",
    "rollout__max_completion_length": 6,
    "advantages__mode": "trloo",
    "advantages__gamma": 0.4,
}


def test_run_on_conversations_logs_metrics_and_samples_by_turn(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path
) -> None:
    changes = {**TURNS, "run__eval_steps": 2, "eval__num_tasks": 1, "eval__num_generations": 2}
    assert main(flags(tasks, tmp_path, **changes)) == 0
    lines = records(tmp_path / "metrics.jsonl")
    said = records(tmp_path / "samples.jsonl")
    for line in lines:
        mine = [one for one in said if one["step"] == line["step"] and not one["id"].startswith("eval/")]
        turns = [one.get("turns", [one]) for one in mine]
        assert len(mine) == 8 == line["turns/count_1"]
        assert line["turns/mean"] == pytest.approx(sum(map(len, turns)) / 8)
        solved = [[turn["verdict"]["outcome"] == "correct" for turn in one] for one in turns]
        judged = [[turn["verdict"]["outcome"] != "harness_failed" for turn in one] for one in turns]
        for t in (1, 2, 3):
            known = [any(one[:t]) for one, there in zip(solved, judged, strict=True) if any(there[:t])]
            assert line[f"correct_by_turn/{t}"] == pytest.approx(sum(known) / len(known))
        assert line["correct_by_turn/1"] <= line["correct_by_turn/2"] <= line["correct_by_turn/3"]
        assert line["reward"] == pytest.approx(
            sum(one["reward"] for one in mine if one["reward"] is not None)
            / sum(one["reward"] is not None for one in mine)
        )
        assert 0 <= line["time/judge_s"] <= line["time/step_s"]
        if line["tokens_in_loss"]:
            assert line["sampling/ess"] == pytest.approx(1, abs=1e-3)
            assert abs(line["sampling/kl"]) < 1e-3
    assert any(len(one.get("turns", [])) == 3 for one in said)
    for one in said:
        turns = one.get("turns", [one])
        assert one["completion"] == turns[-1]["completion"]
        outcomes = [turn["verdict"]["outcome"] for turn in turns]
        assert "harness_failed" not in outcomes[:-1]
        for before, turn in itertools.pairwise(turns):
            (reply,) = turn["reply"]
            assert reply["content"].startswith(before["verdict"]["outcome"])
        for turn in turns:
            outcome = re.search(r"# outcome: (\w+)", turn["completion"])
            assert turn["verdict"]["outcome"] == (outcome[1] if outcome else "format_error")
    assert {"eval/correct_by_turn/1", "eval/correct_by_turn/3", "eval/turns/mean"} <= set(lines[1])
    found = summary(tmp_path)
    assert found["eval_judge_correct_last"] is not None
    assert not any(isinstance(value, (dict, list)) for value in found.values())
    for t in (1, 2, 3):
        assert found[f"heldout_correct_by_turn_{t}_before"] is None  # no evaluation ran before training
        assert found[f"heldout_correct_by_turn_{t}_after"] == pytest.approx(lines[1][f"eval/correct_by_turn/{t}"])
    assert found["heldout_correct_after"] == found["heldout_correct_by_turn_3_after"]


@pytest.mark.parametrize("options", [{}, {"rollout__earlier_reasoning": "drop", "rollout__batch_size": 2}])
def test_run_stopped_in_the_middle_of_a_conversation_resumes_to_the_same_bits(
    fake: list[FakeJudge],
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """The time that a verdict takes must not change the run."""
    changes = {**TURNS, **options, "optim__num_iterations": 2, "loss__beta": 0.05, "run__max_steps": 3}
    assert main(flags(tasks, tmp_path / "straight", **changes)) == 0
    judged = FakeJudge.evaluate
    first_step = len(fake[0].judged) // 3

    def evaluate(self: FakeJudge, task: Task, candidate: str, *given: Any) -> Verdict:
        time.sleep(zlib.crc32(candidate.encode()) % 5 / 200)
        if self is FakeJudge.made[1] and next(self.begun) == first_step + 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return judged(self, task, candidate, *given)

    monkeypatch.setattr(FakeJudge, "evaluate", evaluate)
    assert main(flags(tasks, tmp_path / "run", **changes)) == EXIT_STOPPED
    assert summary(tmp_path / "run")["steps"] < 3
    assert main([*flags(tasks, tmp_path / "run", **changes), "--resume"]) == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "straight")
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "straight")["weights_sha256"]
    assert any("turns" in one for one in records(tmp_path / "run" / "samples.jsonl"))


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout__context": "best", "rollout__context_turns": 2, "advantages__turn_returns": "max"},
        {"rollout__stop_when_correct": "true", "loss__loss_type": "dr_kernel", "rollout__max_resampling_rounds": 1},
        {
            "advantages__mode": "grpo",
            "advantages__baseline": "group",
            "advantages__thinking_weights": '{"correct": 0, "speedup": 1}',
            "advantages__answer_weights": '{"correct": 1}',
            "rollout__fixed_batches": "false",
        },
    ],
    ids=["best", "stop", "thinking"],
)
def test_every_kind_of_conversation_trains(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert main(flags(tasks, tmp_path, **{**TURNS, **changes, "run__max_steps": 2})) == 0
    assert summary(tmp_path)["skipped_updates"] == 0


def test_mistakes_about_conversations_give_one_sentence(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(**changes: Any) -> str:
        return mistake(flags(tasks, tmp_path, **changes), capsys)

    assert said(rollout__max_turns=3) == (
        "rollout.max_turns is 3, but nothing judges the answers in between: add the section judge "
        "(judge: {} in YAML, --judge.device cpu as a flag)"
    )
    judged = {"rewards": "kevin", "judge__device": "cpu"}
    assert said(**judged, rollout__max_turns=2, advantages__mode="reinforce_pp") == (
        "advantages.mode reinforce_pp is not defined for conversations; rollout.max_turns is 2"
    )
    assert said(**judged, rollout__max_turns=2, advantages__scale_rewards="batch") == (
        "advantages.scale_rewards batch is not defined for conversations; rollout.max_turns is 2"
    )
    assert said(**judged, rollout__max_turns=2, rollout__feedback_template="none") == (
        "feedback template none is neither one of evolve, feedback, nano nor a file that can be read"
    )
    assert said(**judged, share_rejection__threshold=0.3) == (
        "share_rejection needs the share of device time that a candidate's own kernels take, which is measured only on "
        "a GPU; judge.device is cpu"
    )
    assert said(**judged, advantages__thinking_weights='{"speed": 1}', advantages__answer_weights='{"correct": 1}') == (
        "advantages.thinking_weights names speed, which is no reward of this run; it has correct, speedup"
    )
    assert "come together" in said(**judged, advantages__answer_weights='{"correct": 1}')
    assert said(**judged, rollout__max_turns=0).startswith("rollout.max_turns: input should be greater than or equal")
    assert said(**judged, advantages__turn_returns="best").startswith("advantages.turn_returns: input should be 'sum'")


def test_recipe_with_conversations_loads_as_an_equal_config_after_saving(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "rewards: dr_kernel\njudge: {}\nrollout: {max_turns: 3}\nloss: {loss_type: dr_kernel}\n"
        "advantages: {mode: trloo}\nshare_rejection: {threshold: 0.3}\n"
    )
    config = load_config(tmp_path / "c.yaml")
    assert config.share_rejection == ShareRejectionConfig(threshold=0.3, width=0.1)
    assert config.loss_spec() == LossSpec.preset("dr_kernel")
    (tmp_path / "copy.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "copy.yaml") == config

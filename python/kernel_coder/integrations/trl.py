"""TRL: rewards on verdicts, rollouts of several turns, and an environment with a tool. Written for TRL 1.16.

The dataset's columns come from :func:`kernel_coder.integrations.scoring.rows`::

    judge = open_judge("cuda:0", "triton").__enter__()      # or the address of a service, with several processes
    reward = JudgedReward(judge, "kevin")
    trainer = GRPOTrainer(model, reward_funcs=reward, train_dataset=Dataset.from_list(rows("packaged")), ...)
    trainer.train()

An answer that the judge could not score has the reward None. TRL then gives it the advantage 0 and leaves it out of its
group's mean. A sum of several reward functions would hide that, so pass one :class:`JudgedReward` with all rewards.
:class:`kernel_coder.integrations.trl_trainer.FusedGRPOTrainer` is TRL's trainer with this project's loss.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernel_coder import ops
from kernel_coder.integrations.scoring import format_error, reward_set, task_of, totals, verdicts_on
from kernel_coder.judge import Verdict
from kernel_coder.judge.supervisor.batching import AnyJudge, askers
from kernel_coder.prompts import build_messages, encode_prompt
from kernel_coder.rewards import completion_text
from kernel_coder.rollout import Conversation, FollowUp, Rollout, RolloutEngine, Sampling, completion_seed, converse
from kernel_coder.rollout.conversations import Ask
from kernel_coder.tasks.task import Task


class JudgedReward:
    """A reward function for ``GRPOTrainer(reward_funcs=...)``: the weighted sum of this project's rewards.

    It is ``async``, so TRL runs other rewards of that kind while the judge works. Each part's mean is logged as
    ``kernel_coder/NAME``, with ``kernel_coder/unscored``, the share of answers without a reward.

    Args:
        judge: an open judge. Several training processes need one judge, so open a service and give them its address.
        rewards: a preset's name, or the value of a recipe's section ``rewards``.
    """

    __name__ = "kernel_coder"

    def __init__(self, judge: AnyJudge, rewards: Any = "kevin") -> None:
        self.judge, self.rewards = judge, reward_set(rewards)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        reference: Sequence[str],
        verdict: Sequence[Verdict] | None = None,
        answer: Sequence[str] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards.

        Args:
            prompts, completions: texts or conversations.
            reference: the dataset's column.
            verdict, answer: from :func:`kernel_rollout`, which has had the answers judged.
            log_metric: TRL's.
            columns: the dataset's other columns. ``backend``, ``precision``, ``entry_point`` and ``task_id`` describe
                the task.
        """
        answers = list(answer) if answer is not None else [completion_text(one) for one in completions]
        names = [name for name in ("task_id", "backend", "precision", "entry_point") if name in columns]
        tasks = [task_of(one, **{name: columns[name][i] for name in names}) for i, one in enumerate(reference)]
        if verdict is None:
            verdict = await asyncio.to_thread(verdicts_on, self.judge, tasks, answers)
        columns = {**columns, "reference": reference, "verdict": list(verdict), "task": tasks}
        table = await asyncio.to_thread(self.rewards, prompts, answers, **columns)
        found = totals(table, verdict)
        if log_metric is not None:
            for label, part in table.parts.items():
                if scored := [value for value in part if value is not None]:
                    log_metric(f"kernel_coder/{label}", sum(scored) / len(scored))
            log_metric("kernel_coder/unscored", sum(one is None for one in found) / len(found))
        return found


@dataclass(frozen=True)
class _Opening:
    task: Task
    messages: Sequence[Any]
    ids: tuple[int, ...]


def kernel_rollout(
    tasks: Sequence[Task],
    judge: AnyJudge,
    *,
    max_turns: int = 2,
    prompt_template: str = "kernel_coder",
    feedback_template: str = "feedback",
    stop_when_correct: bool = True,
    make_engine: Callable[[Any], RolloutEngine] | None = None,
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Return a ``rollout_func`` for ``GRPOTrainer``: conversations in which the model is told the verdict and answers
    again.

    A conversation is one sequence. The tokens of the feedback have ``env_mask`` 0 and carry no loss. The reward is that
    of the last answer: pass a :class:`JudgedReward`, which finds the columns ``verdict`` and ``answer``.

    Args:
        tasks: those of the dataset, whose prompts must have been made with `prompt_template`.
        judge: an open judge.
        max_turns: highest number of answers in a conversation.
        prompt_template, feedback_template: see :mod:`kernel_coder.prompts`.
        stop_when_correct: end a conversation after a correct answer.
        make_engine: makes the engine from the trainer; None: this project's sampler of transformers' models.
    """
    by_prompt = {_key(build_messages(task, prompt_template)): task for task in tasks}
    make_engine = make_engine or _engine_of

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        args, tokenizer = trainer.args, trainer.processing_class
        unknown = next((prompt for prompt in prompts if _key(prompt) not in by_prompt), None)
        if unknown is not None:
            raise ValueError(f"a prompt of the dataset belongs to none of the tasks; it begins {str(unknown)[:80]!r}")
        openings = [_Opening(by_prompt[_key(one)], one, tuple(encode_prompt(tokenizer, one))) for one in prompts]
        place = trainer.accelerator.process_index
        began = (args.seed, trainer.state.global_step, place, "train" if trainer.model.training else "eval")
        conversations = [Conversation(one, partial(completion_seed, *began, i)) for i, one in enumerate(openings)]
        sampling = Sampling(
            max_completion_length=args.max_completion_length,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k or 0,
        )
        follow_up = FollowUp(
            tokenizer=tokenizer, max_turns=max_turns, template=feedback_template, stop_when_correct=stop_when_correct
        )
        with ThreadPoolExecutor(askers(judge.device, judge.config), thread_name_prefix="verdicts") as threads:
            found = converse(
                make_engine(trainer), conversations, sampling, ask=_asking(judge, threads), follow_up=follow_up
            )
        return _columns(found)

    return rollout


def _key(messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps([[message["role"], message["content"]] for message in messages])


def _engine_of(trainer: Any) -> RolloutEngine:
    from kernel_coder.rollout.transformers_engine import TransformersEngine

    return TransformersEngine(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class)


def _asking(judge: AnyJudge, threads: ThreadPoolExecutor) -> Ask:
    """Starts to judge an answer. Equal code for one task is judged once."""
    known: dict[tuple[str, str], Future[Verdict]] = {}

    def ask(task: Task, answer: str) -> Future[Verdict]:
        if (verdict := format_error(task, answer, judge.device)) is not None:
            found: Future[Verdict] = Future()
            found.set_result(verdict)
            return found
        code = ops.parse_response(answer).code
        assert code is not None
        if (task.id, code) not in known:
            known[task.id, code] = threads.submit(judge.evaluate, task, code, task.backend)
        return known[task.id, code]

    return ask


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Return the values that TRL expects from a ``rollout_func``, and the columns for the rewards."""
    made: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "verdict", "answer", "turns")
    }
    for rollout in rollouts:
        first = rollout.turns[0]
        ids, logprobs, mask = list[int](), list[float](), list[int]()
        for turn in rollout.turns:
            glue = turn.prompt_ids[len(first.prompt_ids) + len(ids) :]
            ids += [*glue, *turn.completion_ids]
            logprobs += [*(0.0 for _ in glue), *turn.logprobs]
            mask += [*(0 for _ in glue), *(1 for _ in turn.completion_ids)]
        made["prompt_ids"].append(list(first.prompt_ids))
        made["completion_ids"].append(ids)
        made["logprobs"].append(logprobs)
        made["env_mask"].append(mask)
        made["verdict"].append(rollout.verdicts[-1])
        made["answer"].append(rollout.turns[-1].text)
        made["turns"].append(len(rollout.turns))
    return made


def kernel_environment(judge: AnyJudge, rewards: Any = "kevin", *, max_attempts: int = 4) -> type[Any]:
    """Return an ``environment_factory`` for ``GRPOTrainer``, for models whose chat template has tools.

    The model may call the tool ``judge_kernel`` up to `max_attempts` times; the reward is that of the last call, or
    without a call that of an answer without code. The dataset needs the column ``reference``.
    """
    chosen = reward_set(rewards)

    class KernelEnvironment:
        """One task. TRL makes an instance, resets it for each rollout and calls its tool."""

        def reset(self, reference: str, **columns: Any) -> None:
            """Take a task from the dataset's row."""
            names = ("task_id", "backend", "precision", "entry_point")
            self._task = task_of(reference, **{name: columns.get(name) for name in names})
            self._columns = {name: [value] for name, value in columns.items()}
            self._code, self._attempts = "", 0
            self._verdict: Verdict | None = None

        def judge_kernel(self, code: str) -> str:
            """Compile a kernel, compare it with the PyTorch reference and measure its speed.

            Args:
                code: The whole source of the module, which defines the class ModelNew.

            Returns:
                What was found: correct or not, the reason, and the speedup.
            """
            if self._attempts >= max_attempts:
                return f"All {max_attempts} attempts are used up."
            self._attempts += 1
            self._code = code
            self._verdict = judge.evaluate(self._task, code, self._task.backend)
            return told(self._verdict)

        def get_reward(self) -> float | None:
            """Return the reward of the last attempt; None if the judge could not score it."""
            answer = f"<answer>\n```python\n{self._code}\n```\n</answer>" if self._verdict is not None else ""
            verdict = self._verdict or format_error(self._task, answer, judge.device)
            assert verdict is not None
            columns: dict[str, Any] = {
                **self._columns,
                "reference": [self._task.reference],
                "verdict": [verdict],
                "task": [self._task],
            }
            return totals(chosen([""], [answer], **columns), [verdict])[0]

    return KernelEnvironment


def told(verdict: Verdict) -> str:
    """Return a verdict in a few sentences, for a model.

    >>> from kernel_coder.judge import example_verdict
    >>> print(told(example_verdict("correct", speedup=2.0)))
    correct, 2.00x the speed of the reference
    """
    head = verdict.outcome.value
    if verdict.speedup:
        head += f", {verdict.speedup:.2f}x the speed of the reference"
    return f"{head}\n{verdict.feedback or verdict.reason or ''}".strip()

"""The training loop: draw tasks, sample answers, reward them, update the policy, log, save.

Each phase is a function of explicit values. A step either happens as a whole or leaves weights, random state and files
as they were, so a run that is killed anywhere goes on from its last checkpoint to the same bits (on the CPU, with the
same number of threads).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernel_coder.report.learned import learning
from kernel_coder.rollout import Conversation, Sampling, completion_seed, converse
from kernel_coder.run.checkpoint import TrainState, capture_rng, restore_rng, save_checkpoint
from kernel_coder.run.logs import RunLog
from kernel_coder.run.signals import listening
from kernel_coder.run.steps import Outcome, facts, opened, run_steps
from kernel_coder.train.batch import finite_or_nan, make_batch
from kernel_coder.train.config import TrainConfig
from kernel_coder.train.curriculum import Progress, draw, learn, progress_metrics, stage_factors
from kernel_coder.train.groups import Answers, with_spread
from kernel_coder.train.metrics import METRIC, Stopwatch, answer_metrics, update_metrics
from kernel_coder.train.scoring import describe, rejected_by_share, reward, thinking_and_answer
from kernel_coder.train.setup import Prompt, Session, open_session
from kernel_coder.train.update import UpdateResult, update, with_old_and_reference

FIRST_AND_LAST = ("reward", "eval/reward", "judge/correct", "eval/judge/correct")
"""Of these the summary has the first number and the last."""


def train(config: TrainConfig, *, resume: str | None = None) -> Outcome:
    """A whole run. ``resume``: None, ``auto`` (newest valid checkpoint of ``run.output_dir``) or a checkpoint."""

    def open_log(run_dir: Path, session: Session) -> RunLog:
        return RunLog(run_dir, config, session.state.step)

    with opened(config, resume, open_session, open_log) as (run_dir, session, log):
        if session.state.step == 0 and config.run.eval_on_start and session.held_out:
            watch = Stopwatch()
            with watch.phase("eval"):
                found, lines = evaluate(session, config, session.state.progress, step=0)
            log.step(0, found | {"time/eval_s": watch.seconds["eval"]}, lines)
        with listening() as stop:
            state, status = run_steps(
                lambda state: run_step(config, session, state, stop.poll),
                lambda state: save(config, session, state, run_dir),
                session.state,
                total=config.run.max_steps,
                save_steps=config.run.save_steps,
                run_dir=run_dir,
                log=log,
                stop=stop,
            )
        turns = config.rollout.max_turns
        learnt = learning(run_dir, state.step, turns)
        summary = summarise(config, session, state, run_dir, status, log) | learnt.facts(turns)
        return Outcome(status, log.finish(summary, learnt.words(run_dir)))


def run_step(
    config: TrainConfig, session: Session, state: TrainState, poll: Callable[[], None]
) -> tuple[TrainState, dict[str, float], list[dict[str, Any]]]:
    """One generation batch and its updates. ``poll`` may raise until the update begins."""
    group, watch, progress = config.rollout.num_generations, Stopwatch(), state.progress

    def try_tasks(count: int, again: int = 0, tried: Collection[str] = ()) -> Answers:
        nonlocal progress
        seed = (config.run.seed, state.step, *(("again", again) if again else ()))
        prompts, progress = draw(session.train, progress, config, count, seed, tried)
        return answer(config, session, prompts, seed, state.step, stage_factors(config, progress), poll, watch)

    answers, sampled, resampling = with_spread(
        try_tasks(config.tasks_per_step), try_tasks, config.rollout.max_resampling_rounds
    )
    rollouts, table = answers.rollouts, answers.table
    with watch.phase("logprobs"):
        turns = [turn for rollout in rollouts for turn in rollout.turns]
        left_out = rejected_by_share(config, rollouts, (config.run.seed, state.step))
        total, thinking = thinking_and_answer(config, session, rollouts, table)
        batch = make_batch(
            turns,
            finite_or_nan(total),
            config.advantages,
            group,
            mask_truncated=config.loss.mask_truncated_completions,
            turn_counts=None if session.follow_up is None else [len(rollout.turns) for rollout in rollouts],
            thinking=thinking,
            rejected=left_out,
        )
        batch = with_old_and_reference(
            session.policy,
            session.reference,
            batch,
            session.spec,
            config.optim,
            temperature=session.sampling.temperature,
            minibatches=config.minibatches,
        )
        poll()
    with watch.phase("update"):
        result = update(
            session.policy,
            session.optimizer,
            batch,
            session.spec,
            config.optim,
            temperature=session.sampling.temperature,
            minibatches=config.minibatches,
            learning_rate=session.learning_rate,
            first_update=state.update,
            skipped_in_a_row=state.skipped_in_a_row,
            max_skipped=config.run.max_skipped_updates,
        )
        if session.shares_gpu:
            torch.cuda.empty_cache()  # what the update worked in, for those who are judged there
    state = advance(state, result, config.updates_per_step)
    metrics = {
        **answer_metrics(config, answers, batch.advantages),
        **({} if left_out is None else {"share_rejected": float(sum(left_out))}),
        **resampling,
        **update_metrics(result, config.updates_per_step),
        "num_tokens": float(state.trained_tokens),
    }
    state = replace(state, progress=learn(progress, sampled, session.train, config, metrics))
    metrics |= progress_metrics(state.progress, config)
    lines = list(describe(state.step, group, rollouts, table, batch.advantages))
    if config.run.eval_steps and (state.step % config.run.eval_steps == 0 or state.step == config.run.max_steps):
        with watch.phase("eval"):
            found, answered = evaluate(session, config, state.progress, step=state.step)
        metrics |= found
        lines += answered
    metrics |= watch.metrics(sum(len(turn.completion_ids) for turn in turns))
    return state, metrics, lines


def answer(
    config: TrainConfig,
    session: Session,
    prompts: Sequence[Prompt],
    seed: tuple[int | str, ...],
    step: int,
    factors: Mapping[str, float] | None,
    poll: Callable[[], None] | None = None,
    watch: Stopwatch | None = None,
    *,
    group: int | None = None,
    sampling: Sampling | None = None,
) -> Answers:
    """A group of rollouts for every prompt, neighbours of each other: sampled, judged turn by turn, and rewarded."""
    group, watch, poll = group or config.rollout.num_generations, watch or Stopwatch(), poll or (lambda: None)
    watch.seconds.setdefault("judge", 0.0)
    with session.judge.asking() as ask:
        rollouts = converse(
            session.engine,
            conversations(prompts, group, seed),
            sampling or session.sampling,
            ask=ask,
            follow_up=session.follow_up,
            batch_size=config.rollout.batch_size_of(len(prompts) * group),
            tasks_at_once=session.judge.tasks_at_once,
            fixed_batches=config.rollout.fixed_batches,
            overlap=session.overlap,
            poll=poll,
            watch=watch.phase,
        )
    with watch.phase("reward"):
        table = reward(session.rewards, rollouts, step, factors)
        poll()
    return Answers(tuple(prompts), tuple(rollouts), table)


def conversations(prompts: Sequence[Prompt], group: int, seed: tuple[int | str, ...]) -> list[Conversation]:
    """``group`` new conversations on every prompt.

    A random number depends on the seed, the task's place in the step and its id, the conversation's number and the
    turn's: nothing else.
    """

    def seeds(*name: int | str) -> Callable[[int], int]:
        return lambda turn: completion_seed(*seed, *name, *(("turn", turn) if turn else ()))

    return [Conversation(p, seeds(i, p.task.id, k)) for i, p in enumerate(prompts) for k in range(group)]


def evaluate(
    session: Session, config: TrainConfig, progress: Progress, *, step: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Rewards on the tasks that are never trained on, and every answer. Leaves the random state as it was."""
    rng = capture_rng()
    sampling = replace(session.sampling, temperature=config.eval.temperature)
    answers = answer(
        config,
        session,
        session.held_out,
        (config.run.seed, "eval"),
        step,
        stage_factors(config, progress),
        group=config.eval.num_generations,
        sampling=sampling,
    )
    restore_rng(rng)
    found = answer_metrics(config, answers, torch.zeros(0))
    kept = (
        *("unscored", "rewards/", "judge/", "correct_by_turn/", "reward_by_turn/", "turns/"),
        *("completions/mean_length", "completions/clipped_ratio"),
    )
    metrics = {f"eval/{name}": value for name, value in found.items() if name == "reward" or name.startswith(kept)}
    return metrics, list(describe(step, config.eval.num_generations, answers.rollouts, answers.table))


def advance(state: TrainState, result: UpdateResult, updates: int) -> TrainState:
    return replace(
        state,
        step=state.step + 1,
        update=state.update + updates,
        skipped=state.skipped + result.skipped,
        skipped_in_a_row=result.skipped_in_a_row,
        trained_tokens=state.trained_tokens + int(result.sums[METRIC["tokens"]]),
    )


def save(config: TrainConfig, session: Session, state: TrainState, run_dir: Path) -> None:
    save_checkpoint(run_dir, session.policy, session.optimizer, state, capture_rng(), keep=config.run.save_total_limit)


def summarise(
    config: TrainConfig, session: Session, state: TrainState, run_dir: Path, status: str, log: RunLog
) -> dict[str, Any]:
    """What ``summary.json`` holds: flat, the same keys in every run of equal turns (None where there is no number)."""
    return {
        "status": status,
        "steps": state.step,
        "updates": state.update,
        "skipped_updates": state.skipped,
        "trained_tokens": state.trained_tokens,
        "tasks": len(session.train),
        "held_out_tasks": len(session.held_out),
        **{f"{name.replace('/', '_')}_first": log.first.get(name) for name in FIRST_AND_LAST},
        **{f"{name.replace('/', '_')}_last": log.last.get(name) for name in FIRST_AND_LAST},
        **facts(config, session.policy, state, run_dir),
    }

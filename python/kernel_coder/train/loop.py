"""The training loop: draw tasks, sample answers, judge and reward them, update the policy, log, save.

A step is either completed or leaves weights, random state and files as they were. So a run that is killed at any moment
and continues from its last checkpoint ends with the same bits (on the CPU, with the same number of threads).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from kernel_coder.report.learned import learning
from kernel_coder.run import distributed
from kernel_coder.run.logs import RunLog
from kernel_coder.run.rng import own_randomness, rng_unchanged
from kernel_coder.run.steps import Poll, RunResult, StepResult, opened, origin_facts, progress_facts, run_steps
from kernel_coder.run.stopwatch import Stopwatch
from kernel_coder.train.ahead import Ahead, ahead_of
from kernel_coder.train.batch import Batch, make_batch
from kernel_coder.train.config import TrainConfig
from kernel_coder.train.curriculum import TrainState, draw, learn, progress_metrics, stage_factors
from kernel_coder.train.groups import Answers, Sampled, sample_with_spread
from kernel_coder.train.metrics import answer_metrics, evaluation_metrics, resampling_metrics, update_metrics
from kernel_coder.train.rollouts import RolloutRequest
from kernel_coder.train.samples_log import sample_lines
from kernel_coder.train.scoring import rejected_by_share, token_rewards
from kernel_coder.train.setup import TrainingRun, prepare
from kernel_coder.train.update import METRIC, UpdateResult

PRINTED_METRICS = {
    "reward": "reward",
    "reward_std": "std",
    "frac_reward_zero_std": "flat groups",
    "judge/correct": "correct",
    "completions/mean_length": "length",
    "loss": "loss",
    "grad_norm": "grad norm",
    "entropy": "entropy",
    "kl": "kl",
    "eval/reward": "eval reward",
    "eval/judge/correct": "eval correct",
    "skipped_updates": "skipped",
    "time/step_s": "seconds",
}
"""The metrics that are printed, and their labels. ``metrics.jsonl`` has all metrics."""

SUMMARY_METRICS = ("reward", "eval/reward", "judge/correct", "eval/judge/correct")
"""The metrics whose first and last value are in the summary."""


def train(config: TrainConfig, *, resume: str | None = None) -> RunResult:
    """Trains to the end of the run, or until a signal asks the run to stop.

    Args:
        config: of the run.
        resume: None for a new run, ``auto`` for the newest valid checkpoint of ``run.output_dir``, or a checkpoint.
    """
    with opened(config, resume, prepare, PRINTED_METRICS) as (run, log), run.worker.closing(), ahead_of(run) as ahead:
        run.judge.told = log.judged
        if run.state.step == 0 and config.run.eval_on_start and run.held_out:
            watch = Stopwatch(log.doing)
            with watch.phase("eval"):
                found, lines = evaluate(run, run.state, step=0)
            log.step(0, found | {"time/eval_s": watch.seconds["eval"]}, lines)
        completed = ahead.saved if ahead else _as_it_is
        step = partial(run_step, run, ahead)
        state, status = run_steps(run, config.run, log, step, config.parallel, completed)
        learnt = distributed.from_first(lambda: learning(log.run_dir, state.step, config.rollout.max_turns))
        summary = summarise(run, state, status, log) | learnt.facts(config.rollout.max_turns)
        return RunResult(status, log.finish(summary, learnt.words(log.run_dir)))


def run_step(
    run: TrainingRun, ahead: Ahead | None, state: TrainState, poll: Poll, watch: Stopwatch
) -> StepResult[TrainState]:
    """Does one step: a generation batch and its updates. ``poll`` may raise until the updates begin."""
    config = run.config
    if ahead is not None:
        sampled = Sampled.at_once(ahead.answers(state, poll, watch))
    else:
        sampled = sample_with_spread(
            partial(answer_tasks, run, state, poll, watch), config.tasks_per_step, config.rollout.max_resampling_rounds
        )
    answers = sampled.answers
    computing = ahead.computing if ahead else nullcontext
    with watch.phase("logprobs"), computing():
        rejected = rejected_by_share(config.share_rejection, answers.rollouts, (config.run.seed, state.step))
        batch = run.learner.with_logprobs(learning_batch(run, answers, rejected))
        poll()
    with watch.phase("update"), computing():
        own_randomness(config.run.seed, state.step)
        result = run.learner.update(batch, state.update, state.skipped_in_a_row)
    if ahead is not None:
        staleness = ahead.done(state)
    state = after_updates(state, result, config.updates_per_step)
    metrics = {
        **answer_metrics(answers, batch.advantages, config.rollout.max_turns),
        **({} if rejected is None else {"share_rejected": float(sum(rejected))}),
        **(resampling_metrics(sampled) if config.rollout.max_resampling_rounds else {}),
        **update_metrics(result, config.updates_per_step),
        "num_tokens": float(state.trained_tokens),
    }
    if ahead is not None:
        metrics["sampling/staleness"] = staleness
    progress = replace(state.progress, drawn=state.progress.drawn + sampled.num_tasks)
    state = replace(state, progress=learn(progress, sampled.rounds, run.train, config, metrics))
    metrics |= progress_metrics(state.progress, config)
    lines = list(sample_lines(state.step, answers, batch.advantages))
    if config.run.eval_steps and (state.step % config.run.eval_steps == 0 or state.step == config.run.max_steps):
        with watch.phase("eval"), ahead.paused() if ahead else nullcontext():
            found, answered = evaluate(run, state, step=state.step)
        metrics |= found
        lines += answered
    metrics |= watch.metrics(sum(len(turn.completion_ids) for turn in answers.turns))
    return StepResult(state, metrics, lines)


def answer_tasks(
    run: TrainingRun, state: TrainState, poll: Poll, watch: Stopwatch, count: int, earlier: Sequence[Answers]
) -> Answers:
    """Draws ``count`` tasks and answers them, in the first round of a step or after ``earlier`` rounds."""
    config = run.config
    seed = (config.run.seed, state.step, *(("again", len(earlier)) if earlier else ()))
    drawn = state.progress.drawn + sum(len(answers.prompts) for answers in earlier)
    tried = {prompt.task.id for answers in earlier for prompt in answers.prompts}
    request = RolloutRequest(
        prompts=draw(run.train, replace(state.progress, drawn=drawn), config, count, seed, tried),
        group=config.rollout.num_generations,
        sampling=run.sampling,
        seed=seed,
        step=state.step,
        factors=stage_factors(config, state.progress),
        version=state.update,
    )
    return run.worker.answer(request, poll, watch)


def learning_batch(run: TrainingRun, answers: Answers, rejected: Sequence[bool] | None) -> Batch:
    """Return the answers with their advantages. ``rejected`` answers are left out of the loss."""
    advantages = run.config.advantages
    rewards, thinking = token_rewards(answers, run.worker.rewards, advantages, run.policy.tokenizer.decode)
    return make_batch(
        answers.turns,
        rewards,
        advantages,
        answers.group,
        mask_truncated=run.config.loss.mask_truncated_completions,
        turn_counts=None if run.worker.follow_up is None else [len(rollout.turns) for rollout in answers.rollouts],
        thinking=thinking,
        rejected=rejected,
    )


def evaluate(run: TrainingRun, state: TrainState, *, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Answers the held-out tasks. Returns metrics and lines of ``samples.jsonl``; the random state is unchanged."""
    config = run.config
    request = RolloutRequest(
        prompts=run.held_out,
        group=config.eval.num_generations,
        sampling=replace(run.sampling, temperature=config.eval.temperature),
        seed=(config.run.seed, "eval"),
        step=step,
        factors=stage_factors(config, state.progress),
        version=state.update,
    )
    with rng_unchanged():
        answers = run.worker.answer(request)
    return evaluation_metrics(answers, config.rollout.max_turns), list(sample_lines(step, answers))


def after_updates(state: TrainState, result: UpdateResult, updates: int) -> TrainState:
    """Return the state after a step with that many updates."""
    return replace(
        state,
        step=state.step + 1,
        update=state.update + updates,
        skipped=state.skipped + result.skipped,
        skipped_in_a_row=result.skipped_in_a_row,
        trained_tokens=state.trained_tokens + int(result.sums[METRIC["tokens"]]),
        ahead=(),
    )


def _as_it_is(state: TrainState) -> TrainState:
    return state


def summarise(run: TrainingRun, state: TrainState, status: str, log: RunLog) -> dict[str, Any]:
    """Return the content of ``summary.json``: flat, with the same keys in all runs of equal ``rollout.max_turns``."""
    config = run.config
    return {
        **progress_facts(status, state),
        "tasks": len(run.train),
        "held_out_tasks": len(run.held_out),
        **log.first_and_last(SUMMARY_METRICS),
        **origin_facts(run, state, config.run, log.run_dir, model=config.model.name_or_path, data=config.data.path),
    }

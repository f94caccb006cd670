"""Evaluation on held-out tasks: the loss of their known answers, and verdicts on the model's own answers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from kernel_coder import ops
from kernel_coder.rollout import converse
from kernel_coder.run import distributed
from kernel_coder.run.rng import rng_unchanged
from kernel_coder.sft.setup import SftRun
from kernel_coder.sft.update import measure
from kernel_coder.train.groups import verdicts_of
from kernel_coder.train.metrics import completion_metrics, verdict_metrics
from kernel_coder.train.rollouts import conversations, may_overlap, of_all_ranks, own_conversations

ANSWER_METRICS = ("format", "judge/", "completions/mean_length", "completions/clipped_ratio")
"""Prefixes of the metrics that are logged for the model's own answers."""


def evaluate(run: SftRun, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the metrics under ``eval/``, and a line of ``samples.jsonl`` for every answer. The random state is
    unchanged."""
    metrics: dict[str, float] = {}
    lines: list[dict[str, Any]] = []
    with rng_unchanged():
        if run.held_out:  # the same on every rank
            losses = measure(run.policy, run.held_out, bf16=run.policy.bf16)
            metrics = {"loss": losses.mean, "entropy": losses.entropy / max(losses.tokens, 1), "tokens": losses.tokens}
        if run.asked:
            answered, lines = _answer(run, step)
            metrics |= answered
    return {f"eval/{name}": float(value) for name, value in metrics.items()}, lines


def _answer(run: SftRun, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Lets the model answer held-out tasks and has the answers judged."""
    group = run.config.eval.num_generations
    everything = conversations(run.asked, group, (run.config.run.seed, "eval"))
    asked = own_conversations(everything, group)
    overlap = may_overlap(run.judge, run.policy.device)
    run.refresh()
    # An answer grows token by token, and compiled layers would be compiled again for every length.
    eager = nullcontext() if run.filled is None else torch.compiler.set_stance("force_eager")
    with eager, run.judge.asking() as ask:
        at_once = run.judge.tasks_at_once
        rollouts = converse(run.engine, asked, run.sampling, ask=ask, tasks_at_once=at_once, overlap=overlap)
    if not distributed.world().is_alone:
        rollouts = of_all_ranks(rollouts, run.asked, group)
    said = [rollout.answers[-1] for rollout in rollouts]
    verdicts = verdicts_of(rollouts)
    responses = [ops.parse_response(text) for text in said]
    metrics = {"format": sum(response.ok for response in responses) / len(responses), **verdict_metrics(verdicts)}
    metrics |= completion_metrics([rollout.turns[-1] for rollout in rollouts])
    lines = [
        {
            "step": step,
            "id": f"eval/{step}/{rollout.task.id}/{i % group}",
            "task": rollout.task.id,
            "prompt": rollout.shown[-1],
            "completion": said[i],
            "finish_reason": rollout.turns[-1].finish_reason,
            "tokens": len(rollout.turns[-1].completion_ids),
            "format_error": responses[i].error,
            **({} if verdicts is None else {"outcome": str(verdicts[i].outcome), "reason": verdicts[i].reason}),
        }
        for i, rollout in enumerate(rollouts)
    ]
    return {name: value for name, value in metrics.items() if name.startswith(ANSWER_METRICS)}, lines

"""How good the model is on held-out tasks: the loss of their known answers, and what the judge says about its own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from kernel_coder import ops
from kernel_coder.rollout import converse
from kernel_coder.run.checkpoint import capture_rng, restore_rng
from kernel_coder.sft.config import SftConfig
from kernel_coder.sft.setup import Session
from kernel_coder.sft.update import measure
from kernel_coder.train.loop import conversations
from kernel_coder.train.metrics import completion_metrics, verdict_metrics
from kernel_coder.train.scoring import verdicts_of
from kernel_coder.train.setup import share_gpu


def evaluate(session: Session, config: SftConfig, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Numbers under ``eval/`` and a line of ``samples.jsonl`` for every answer. Leaves the random state as it was."""
    rng = capture_rng()
    metrics: dict[str, float] = {}
    if session.held_out:
        losses = measure(session.policy, session.held_out, bf16=config.model.bf16)
        metrics = {"loss": losses.mean, "entropy": losses.entropy / max(losses.tokens, 1), "tokens": losses.tokens}
    lines: list[dict[str, Any]] = []
    if session.asked:
        answered, lines = _answer(session, config, step)
        metrics |= answered
    restore_rng(rng)
    return {f"eval/{name}": float(value) for name, value in metrics.items()}, lines


def _answer(session: Session, config: SftConfig, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    group = config.eval.num_generations
    asked = conversations(session.asked, group, (config.run.seed, "eval"))
    overlap = config.judge is None or not config.judge.timing
    overlap = overlap or not share_gpu(session.judge.device, session.policy.device)
    # Answers grow token by token: each length would be compiled anew.
    plain = nullcontext() if session.filled is None else torch.compiler.set_stance("force_eager")
    with plain, session.judge.asking() as ask:
        at_once = session.judge.tasks_at_once
        rollouts = converse(session.engine, asked, session.sampling, ask=ask, tasks_at_once=at_once, overlap=overlap)
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
    kept = ("format", "judge/", "completions/mean_length", "completions/clipped_ratio")
    return {name: value for name, value in metrics.items() if name.startswith(kept)}, lines

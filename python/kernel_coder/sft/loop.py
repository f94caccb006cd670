"""The supervised loop: draw packed examples, update the model on their answers, log, evaluate, save.

As in reinforcement learning, a run that is killed at any moment and continues from its last checkpoint ends with the
same bits. A reinforcement learning run can begin with a checkpoint (``model.name_or_path``).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernel_coder.policy.defaults import write_defaults
from kernel_coder.policy.model import load_policy
from kernel_coder.run import distributed
from kernel_coder.run.checkpoint import RunState, list_checkpoints
from kernel_coder.run.logs import RunLog
from kernel_coder.run.rng import own_randomness
from kernel_coder.run.steps import Poll, RunResult, StepResult, opened, origin_facts, progress_facts, run_steps
from kernel_coder.run.stopwatch import Stopwatch
from kernel_coder.sft.config import SftConfig
from kernel_coder.sft.evaluation import evaluate
from kernel_coder.sft.setup import SftRun, batches_of, own_packs, prepare, steps_per_epoch
from kernel_coder.sft.update import SftUpdate, update
from kernel_coder.train.curriculum import epoch_order

PRINTED_METRICS = {
    "epoch": "epoch",
    "loss": "loss",
    "grad_norm": "grad norm",
    "entropy": "entropy",
    "learning_rate": "learning rate",
    "eval/loss": "eval loss",
    "eval/format": "eval format",
    "eval/judge/compiled": "eval compiled",
    "eval/judge/correct": "eval correct",
    "skipped_updates": "skipped",
    "time/tokens_per_second": "tokens/s",
}
"""The metrics that are printed, and their labels. ``metrics.jsonl`` has all metrics."""

SUMMARY_METRICS = ("loss", "eval/loss", "eval/format", "eval/judge/correct")
"""The metrics whose first and last value are in the summary."""


def train(config: SftConfig, *, resume: str | None = None) -> RunResult:
    """Trains to the end of the run, or until a signal asks the run to stop.

    Args:
        config: of the run.
        resume: None for a new run, ``auto`` for the newest valid checkpoint of ``run.output_dir``, or a checkpoint.
    """
    with opened(config, resume, prepare, PRINTED_METRICS) as (run, log):
        run.judge.told = log.judged
        if run.state.step == 0 and config.run.eval_on_start and (run.held_out or run.asked):
            log.step(0, *evaluate(run, 0))
        state, status = run_steps(run, config.run, log, partial(run_step, run), config.parallel)
        return RunResult(status, log.finish(summarise(run, state, status, log)))


def run_step(run: SftRun, state: RunState, poll: Poll, watch: Stopwatch) -> StepResult[RunState]:
    """Does one update, and an evaluation every ``run.eval_steps`` steps and after the last."""
    config = run.config
    packs = [run.packs[i] for i in draw(len(run.packs), state.step, config)]
    with watch.phase("data"):
        batches = batches_of(run.examples, own_packs(run.examples, packs), config, run.policy.device, run.filled)
        poll()
    with watch.phase("update"):
        own_randomness(config.run.seed, state.step)
        result = update(
            run.policy,
            run.optimizer,
            batches,
            run.updates,
            number=state.update,
            skipped_in_a_row=state.skipped_in_a_row,
        )
    tokens = sum(len(run.examples[i]) for pack in packs for i in pack)
    state = after_update(state, result, tokens)
    metrics = update_metrics(result, state, state.step / steps_per_epoch(config, len(run.packs)))
    metrics |= watch.metrics(tokens)
    lines: list[dict[str, Any]] = []
    if config.run.eval_steps and (state.step % config.run.eval_steps == 0 or state.step == run.total_steps):
        with watch.phase("eval"):
            found, lines = evaluate(run, state.step)
        metrics |= found | {"time/eval_s": watch.seconds["eval"]}
    return StepResult(state, metrics, lines)


def draw(packs: int, step: int, config: SftConfig) -> list[int]:
    """Return the packs of a step. Each epoch has every pack once, in its own order; its last step may have fewer
    packs."""
    length, size = steps_per_epoch(config, packs), config.packs_per_step
    order = epoch_order(packs, step // length, config.run.seed, config.data.shuffle)
    return order[step % length * size :][:size]


def after_update(state: RunState, result: SftUpdate, tokens: int) -> RunState:
    """Return the state after a step over that many tokens."""
    return replace(
        state,
        step=state.step + 1,
        update=state.update + 1,
        skipped=state.skipped + (result.grad_norm is None),
        skipped_in_a_row=result.skipped_in_a_row,
        trained_tokens=state.trained_tokens + tokens,
    )


def update_metrics(result: SftUpdate, state: RunState, epoch: float) -> dict[str, float]:
    """Return the metrics of an update, under TRL's names."""
    return {
        "epoch": epoch,
        "loss": result.losses.mean,
        "grad_norm": float("nan") if result.grad_norm is None else result.grad_norm,
        "learning_rate": result.learning_rate,
        "entropy": result.losses.entropy / max(result.losses.tokens, 1),
        "tokens_in_loss": float(result.losses.tokens),
        "num_tokens": float(state.trained_tokens),
        "skipped_updates": float(result.grad_norm is None),
    }


def save_merged(run: SftRun, folder: Path) -> Path:
    """Writes the model with its adapters merged into the weights, so that reinforcement learning can load it.

    If the weights are divided, they are loaded again from the last checkpoint.
    """
    if not distributed.world().is_first:
        return folder
    model = run.policy.model
    if run.policy.root is not None:
        newest = list_checkpoints(folder.parent)[0]
        model = load_policy(run.config.model, resume_from=newest, device=torch.device("cpu")).model
    merged = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    merged.save_pretrained(folder)
    run.policy.tokenizer.save_pretrained(folder)
    write_defaults(folder, run.policy.defaults)
    return folder


def summarise(run: SftRun, state: RunState, status: str, log: RunLog) -> dict[str, Any]:
    """Return the content of ``summary.json``: flat, with the same keys in every run."""
    config = run.config
    origin = origin_facts(run, state, config.run, log.run_dir, model=config.model.name_or_path, data=config.data.path)
    merge = status == "finished" and run.policy.is_peft
    return {
        **progress_facts(status, state),
        "examples": len(run.examples),
        "held_out_tasks": run.num_held_out,
        **log.first_and_last(SUMMARY_METRICS),
        "trained_model": str(save_merged(run, log.run_dir / "merged").resolve()) if merge else origin["checkpoint"],
        **origin,
    }

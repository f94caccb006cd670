"""The supervised loop: draw packed answers, raise their likelihood, log, evaluate on held-out tasks, save.

A run that is killed anywhere goes on from its last checkpoint to the same bits, as the reinforcement loop does; the
checkpoint is what that one takes as its ``model.name_or_path``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_coder.run.checkpoint import TrainState, capture_rng, save_checkpoint
from kernel_coder.run.logs import RunLog
from kernel_coder.run.signals import listening
from kernel_coder.run.steps import Outcome, Step, facts, opened, run_steps
from kernel_coder.sft.config import SftConfig
from kernel_coder.sft.evaluation import evaluate
from kernel_coder.sft.setup import Session, batches_of, open_session, steps_per_epoch
from kernel_coder.sft.update import UpdateResult, update
from kernel_coder.train.curriculum import epoch_order
from kernel_coder.train.metrics import Stopwatch

SHOWN = {
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
"""What a person sees of a step; everything else is in metrics.jsonl."""

FIRST_AND_LAST = ("loss", "eval/loss", "eval/format", "eval/judge/correct")
"""Of these the summary has the first number and the last."""


def train(config: SftConfig, *, resume: str | None = None) -> Outcome:
    """A whole run. ``resume``: None, ``auto`` (newest valid checkpoint of ``run.output_dir``) or a checkpoint."""

    def open_log(run_dir: Path, session: Session) -> RunLog:
        return RunLog(run_dir, config, session.state.step, total=session.total_steps, shown=SHOWN)

    with opened(config, resume, open_session, open_log) as (run_dir, session, log):
        if session.state.step == 0 and config.run.eval_on_start and (session.held_out or session.asked):
            log.step(0, *evaluate(session, config, 0))
        with listening() as stop:
            state, status = run_steps(
                lambda state: run_step(config, session, state, stop.poll),
                lambda state: save(config, session, state, run_dir),
                session.state,
                total=session.total_steps,
                save_steps=config.run.save_steps,
                run_dir=run_dir,
                log=log,
                stop=stop,
            )
        return Outcome(status, log.finish(summarise(config, session, state, run_dir, status, log)))


def run_step(config: SftConfig, session: Session, state: TrainState, poll: Callable[[], None]) -> Step:
    """One update, and after every ``run.eval_steps`` of them and the last one the held-out tasks."""
    watch = Stopwatch()
    packs = [session.packs[i] for i in draw(len(session.packs), state.step, config)]
    with watch.phase("data"):
        batches = batches_of(session.examples, packs, config, session.policy.device, session.filled)
        poll()
    with watch.phase("update"):
        result = update(
            session.policy,
            session.optimizer,
            batches,
            learning_rate=session.learning_rate,
            number=state.update,
            max_grad_norm=config.optim.max_grad_norm,
            bf16=config.model.bf16,
            skipped_in_a_row=state.skipped_in_a_row,
            max_skipped=config.run.max_skipped_updates,
            states_of=session.states_of,
        )
    tokens = sum(len(session.examples[i]) for pack in packs for i in pack)
    state = advance(state, result, tokens)
    metrics = describe(result, state, state.step / steps_per_epoch(config, len(session.packs)))
    metrics |= watch.metrics(tokens)
    lines: list[dict[str, Any]] = []
    if config.run.eval_steps and (state.step % config.run.eval_steps == 0 or state.step == session.total_steps):
        with watch.phase("eval"):
            found, lines = evaluate(session, config, state.step)
        metrics |= found | {"time/eval_s": watch.seconds["eval"]}
    return state, metrics, lines


def draw(packs: int, step: int, config: SftConfig) -> list[int]:
    """The packs of a step: every epoch has each of them once, in an order of its own; its last step may be smaller."""
    length, size = steps_per_epoch(config, packs), config.packs_per_step
    order = epoch_order(packs, step // length, config.run.seed, config.data.shuffle)
    return order[step % length * size :][:size]


def advance(state: TrainState, result: UpdateResult, tokens: int) -> TrainState:
    return replace(
        state,
        step=state.step + 1,
        update=state.update + 1,
        skipped=state.skipped + (result.grad_norm is None),
        skipped_in_a_row=result.skipped_in_a_row,
        trained_tokens=state.trained_tokens + tokens,
    )


def describe(result: UpdateResult, state: TrainState, epoch: float) -> dict[str, float]:
    """The numbers of an update under the names of TRL."""
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


def save(config: SftConfig, session: Session, state: TrainState, run_dir: Path) -> None:
    save_checkpoint(run_dir, session.policy, session.optimizer, state, capture_rng(), keep=config.run.save_total_limit)


def save_merged(session: Session, folder: Path) -> Path:
    """The model with its adapters added to the weights, as a reinforcement run takes it."""
    merged = copy.deepcopy(session.policy.model).merge_and_unload()  # type: ignore[operator]
    merged.save_pretrained(folder)
    session.policy.tokenizer.save_pretrained(folder)
    return folder


def summarise(
    config: SftConfig, session: Session, state: TrainState, run_dir: Path, status: str, log: RunLog
) -> dict[str, Any]:
    """What ``summary.json`` holds: flat, the same keys in every run (None where a run has no such number)."""
    last = facts(config, session.policy, state, run_dir)
    finished = status == "finished" and session.policy.is_peft
    trained = str(save_merged(session, run_dir / "merged").resolve()) if finished else last["checkpoint"]
    return {
        "status": status,
        "steps": state.step,
        "updates": state.update,
        "skipped_updates": state.skipped,
        "trained_tokens": state.trained_tokens,
        "examples": len(session.examples),
        "held_out_tasks": session.num_held_out,
        **{f"{name.replace('/', '_')}_first": log.first.get(name) for name in FIRST_AND_LAST},
        **{f"{name.replace('/', '_')}_last": log.last.get(name) for name in FIRST_AND_LAST},
        "trained_model": trained,
        **last,
    }

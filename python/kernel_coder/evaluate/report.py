"""What is left of an evaluation for people and programs: summary.json, table.md and report.html."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.metrics import CONFIDENCE, Baseline, Estimate, Summary, speedup, summarise
from kernel_coder.evaluate.store import REPORT, SUMMARY, TABLE, Key, Sample, write
from kernel_coder.judge import Verdict
from kernel_coder.judge.admission_list import KnownAdmission
from kernel_coder.pages import NONE, percent, render, times
from kernel_coder.tasks import Task

TEMPLATE, SCRIPT = "report.html.jinja", "report.js"
UNTIMED = "Speedups are unknown, and with them fast_p for p > 0: {why}."


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that the packaged list of admissions refuses."""

    task: str
    known: KnownAdmission
    is_left_out: bool

    def __str__(self) -> str:
        what = "left out" if self.is_left_out else "asked all the same"
        return f"Task {self.task} is {what}: {self.known}"


@dataclass(frozen=True)
class Results:
    """An evaluation that is finished: the answers and verdicts that the config asks for, and what they add up to."""

    config: EvaluateConfig
    tasks: Sequence[Task]
    all_samples: Mapping[Key, Sample]
    all_verdicts: Mapping[Key, Verdict]
    refused: Sequence[Refused] = ()

    @property
    def folder(self) -> Path:
        return Path(self.config.output)

    @cached_property
    def keys(self) -> list[Key]:
        """Of this config's samples, task by task; the folder can hold more, of a run with more tasks."""
        return [(task.id, sample) for task in self.tasks for sample in range(self.config.answers)]

    @cached_property
    def verdicts(self) -> dict[Key, Verdict]:
        return {key: self.all_verdicts[key] for key in self.keys}

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        return ("eager", "compile") if self.config.judge.compile_baseline else ("eager",)

    @cached_property
    def summary(self) -> Summary:
        return self._summary(self.tasks)

    @cached_property
    def by_group(self) -> dict[str, Summary]:
        """By level of KernelBench; empty unless there are several."""
        levels = [task.metadata.get("level") for task in self.tasks]
        names = [level for level in dict.fromkeys(levels) if level is not None]
        if len(names) < 2:
            return {}
        return {
            f"level {name}": self._summary(
                [task for task, level in zip(self.tasks, levels, strict=True) if level == name]
            )
            for name in names
        }

    @cached_property
    def by_seed(self) -> dict[str, Summary]:
        """By seed of the answers; empty unless there are several. Their mean is the summary's, whose interval is over
        tasks."""
        seeds = self.config.all_seeds
        if len(seeds) < 2:
            return {}
        found = {}
        for place, seed in enumerate(seeds):
            by_task = {task.id: self.of_task(task)[place :: len(seeds)] for task in self.tasks}
            found[f"seed {seed}"] = summarise(by_task, baselines=self.baselines, seed=self.config.bootstrap_seed)
        return found

    def _summary(self, tasks: Sequence[Task]) -> Summary:
        by_task = {task.id: self.of_task(task) for task in tasks}
        return summarise(by_task, ks=self.config.ks, baselines=self.baselines, seed=self.config.bootstrap_seed)

    def of_task(self, task: Task) -> list[Verdict]:
        return [self.verdicts[task.id, number] for number in range(self.config.answers)]


def write_results(folder: Path, results: Results) -> None:
    """Writes summary.json, table.md and report.html."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write(folder / SUMMARY, orjson.dumps(summary_record(results), option=options).decode())
    write(folder / TABLE, table(results))
    write(folder / REPORT, html(results))


def summary_record(results: Results) -> dict[str, Any]:
    """summary.json."""
    config, verdicts = results.config, results.verdicts
    answers = [results.all_samples[key] for key in results.keys]
    lengths = [sample.completion_tokens for sample in answers if sample.completion_tokens is not None]
    judged = [verdict for verdict in verdicts.values() if "torch" in verdict.versions]  # not those that no judge saw
    return {
        "model": config.model,
        "tasks": config.tasks,
        "task_count": len(results.tasks),
        "tasks_fingerprint": getattr(results.tasks, "fingerprint", None),
        "samples_per_task": config.answers,
        "seeds": list(config.all_seeds),
        "backend": config.backend,
        "devices": sorted({verdict.device for verdict in judged}),
        "interpreted": any(verdict.interpreted for verdict in verdicts.values()),
        "versions": dict(judged[-1].versions) if judged else {},
        "confidence": CONFIDENCE,
        "metrics": asdict(results.summary),
        "groups": {name: asdict(summary) for name, summary in results.by_group.items()},
        "by_seed": {name: asdict(summary) for name, summary in results.by_seed.items()},
        "answers": {
            "finish_reasons": dict(Counter(sample.finish_reason for sample in answers)),
            "without_code": sum(sample.code is None for sample in answers),
            "mean_completion_tokens": sum(lengths) / len(lengths) if lengths else None,
        },
        "by_task": [task_row(results, task) for task in results.tasks],
        "refused_tasks": [
            {"task": one.task, "left_out": one.is_left_out, **asdict(one.known)} for one in results.refused
        ],
    }


def task_row(results: Results, task: Task) -> dict[str, Any]:
    """What became of a task's samples."""
    verdicts = results.of_task(task)
    scored = [verdict for verdict in verdicts if verdict.is_scored]
    ratios = {
        baseline: [ratio for verdict in scored if (ratio := speedup(verdict, baseline)) is not None]
        for baseline in results.baselines
    }
    return {
        "task": task.id,
        "scored": len(scored),
        "compiled": sum(verdict.compiled for verdict in scored),
        "correct": sum(verdict.correct for verdict in scored),
        "best_speedup": {baseline: max(found, default=None) for baseline, found in ratios.items()},
        "outcomes": dict(Counter(verdict.outcome.value for verdict in verdicts)),
    }


def table(results: Results) -> str:
    """table.md: every metric, in Markdown."""
    config, summary = results.config, results.summary
    with_seeds = f" with each of the seeds {', '.join(map(str, config.seeds))}" if config.seeds else ""
    lines = [
        f"# {config.model} on {config.tasks}",
        "",
        f"{summary.tasks} tasks, {config.samples} {'sample' if config.samples == 1 else 'samples'} each{with_seeds}, "
        f"{config.backend}, temperature {config.temperature:g}, top-p {config.top_p:g}; "
        f"{CONFIDENCE:.0%} intervals by bootstrap over tasks.",
        "",
    ]
    lines += [*notes(results), ""] if notes(results) else []
    for header, rows in tables(results):
        lines += [f"| {' | '.join(header)} |", f"|{'|'.join([' :-- '] + [' --: '] * (len(header) - 1))}|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def notes(results: Results) -> list[str]:
    """What a reader has to know to read the numbers."""
    summary, said = results.summary, []
    if results.config.turns > 1:
        turns = results.config.turns
        said.append(f"Of each sample the best of {turns} turns counts; turns.md has the numbers after every turn.")
    if summary.harness_failed:
        said.append(
            f"The judge itself failed on {summary.harness_failed} of {summary.samples} answers. They are in no number "
            "below; --resume judges them again."
        )
    if any(estimate.value is None for estimate in summary.fast_p["eager"].values()) and summary.correct.of:
        interpreted = any(verdict.interpreted for verdict in results.verdicts.values())
        why = "kernels were run by an interpreter" if interpreted else "correct answers were not timed"
        said.append(UNTIMED.format(why=why))
    elif "compile" in summary.fast_p and summary.fast_p["compile"]["1"].value is None and summary.correct.of:
        said.append("By torch.compile speedups are unknown: not every reference was timed under it.")
    said += [f"{one}." for one in results.refused]
    return said


Table = tuple[list[str], list[list[str]]]


def tables(results: Results) -> list[Table]:
    """The tables of the report: a header and rows of text each."""
    summary = results.summary
    found: list[Table] = []
    rows = [
        ["compiled", *cells(summary.compiled), samples(summary.compiled)],
        ["correct", *cells(summary.correct), samples(summary.correct)],
    ]
    for baseline in results.baselines:
        by = "" if len(results.baselines) == 1 else f", by {'eager' if baseline == 'eager' else 'torch.compile'}"
        rows += [
            [f"fast_{p}{by}", *cells(estimate), samples(estimate)] for p, estimate in summary.fast_p[baseline].items()
        ]
        for name, label in (("correct", "correct"), ("correct_and_faster", "correct and faster")):
            estimate = summary.geometric_mean[baseline][name]
            rows.append([f"geometric mean of speedup, {label}{by}", *cells(estimate, times), samples(estimate)])
    found.append((["metric", "value", "interval", "of"], rows))
    if len(results.config.ks) > 1:
        header = ["pass@k", *(f"k = {k}" for k in results.config.ks)]
        found.append(
            (
                header,
                [[name, *(with_interval(one) for one in by_k.values())] for name, by_k in summary.pass_at_k.items()],
            )
        )
    for what, groups in (("tasks of", results.by_group), ("answers of", results.by_seed)):
        if groups:
            header = [what, "tasks", "compiled", "correct", *(f"fast_{p}" for p in summary.fast_p["eager"] if p != "0")]
            found.append((header, [group_row(name, one) for name, one in groups.items()]))
    outcomes = [[name, str(count), percent(count / summary.samples)] for name, count in summary.outcomes.items()]
    found.append((["outcome", "samples", "share"], outcomes))
    return found


def group_row(name: str, summary: Summary) -> list[str]:
    fast = [percent(one.value) for p, one in summary.fast_p["eager"].items() if p != "0"]
    return [name, str(summary.tasks), percent(summary.compiled.value), percent(summary.correct.value), *fast]


def cells(estimate: Estimate, shown: Any = percent) -> list[str]:
    """The value and its interval.

    >>> cells(Estimate(0.5, 0.25, 0.75, 8))
    ['50.0%', '25.0% to 75.0%']
    """
    there = estimate.low is not None and estimate.high is not None
    return [shown(estimate.value), f"{shown(estimate.low)} to {shown(estimate.high)}" if there else NONE]


def samples(estimate: Estimate) -> str:
    """
    >>> samples(Estimate(0.5, of=2)), samples(Estimate(1.0, of=1)), samples(Estimate(None))
    ('2 samples', '1 sample', '–')
    """
    return f"{estimate.of} sample{'' if estimate.of == 1 else 's'}" if estimate.of else NONE


def with_interval(estimate: Estimate) -> str:
    value, interval = cells(estimate)
    return value if interval == NONE else f"{value} ({interval})"


def html(results: Results) -> str:
    """report.html: one page that needs nothing else."""
    return render(
        __package__,
        TEMPLATE,
        SCRIPT,
        config=results.config,
        settings=results.config.to_yaml(),
        summary=results.summary,
        notes=notes(results),
        tables=tables(results),
        tasks=[task_view(results, task) for task in results.tasks],
        outcomes=list(results.summary.outcomes),
        baselines=results.baselines,
        shown=results.config.report_samples,
    )


def task_view(results: Results, task: Task) -> dict[str, Any]:
    """A task as the page shows it: its row, its prompt once, and its best samples."""
    keys = [(task.id, sample) for sample in range(results.config.answers)]
    best = sorted(keys, key=lambda key: rank(results.verdicts[key]))[: results.config.report_samples]
    row = task_row(results, task)
    ratios = row["best_speedup"]
    return {
        **row,
        "messages": results.all_samples[keys[0]].messages,
        "numbers": [-1 if ratios[baseline] is None else ratios[baseline] for baseline in results.baselines],
        "speedups": [times(ratios[baseline]) for baseline in results.baselines],
        "samples": [sample_view(results, key) for key in best],
        "hidden": len(keys) - len(best),
    }


def sample_view(results: Results, key: Key) -> dict[str, Any]:
    sample, verdict = results.all_samples[key], results.verdicts[key]
    facts = {
        "finish reason": sample.finish_reason,
        "tokens": sample.completion_tokens,
        "seed": sample.seed,
        "speedup": None
        if verdict.speedup is None
        else f"{times(verdict.speedup)} ({times(verdict.speedup_low)} to {times(verdict.speedup_high)})",
        "speedup by torch.compile": None if (ratio := speedup(verdict, "compile")) is None else times(ratio),
        "runtime": None if verdict.runtime_ms is None else f"{verdict.runtime_ms:.4g} ms",
        "reference": None if verdict.reference_ms is None else f"{verdict.reference_ms:.4g} ms",
        "kernel share": None if verdict.kernel_share is None else percent(verdict.kernel_share),
        "device": verdict.device + (" (interpreted)" if verdict.interpreted else ""),
    }
    return {
        "number": sample.sample,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "feedback": verdict.feedback,
        "text": sample.text,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "verdict": shown_verdict(verdict),
    }


def shown_verdict(verdict: Verdict) -> str:
    """The verdict for people: one field a line, and single times only counted."""
    fields = orjson.loads(verdict.to_json())
    for name in ("runtimes_ms", "reference_runtimes_ms"):
        if fields[name]:
            fields[name] = f"{len(fields[name])} times, in verdicts.jsonl"
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode()


def rank(verdict: Verdict) -> tuple[bool, float, bool, bool]:
    """A sort key under which the best comes first: correct and fast, then compiled, the harness's failures last."""
    return not verdict.correct, -(verdict.speedup or 0.0), not verdict.compiled, not verdict.is_scored

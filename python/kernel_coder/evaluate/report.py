"""Writes the results of an evaluation: summary.json for programs, table.md and report.html for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from kernel_coder.evaluate.answers import Key
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.metrics import CONFIDENCE, Baseline, Estimate, Summary, speedup, summarise
from kernel_coder.evaluate.store import REPORT, SUMMARY, TABLE, Sample, write
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.admission_list import KnownAdmission
from kernel_coder.pages import NO_VALUE, percent, render, times
from kernel_coder.prompts import template_names
from kernel_coder.tasks import Task

TEMPLATE, SCRIPT = "report.html.jinja", "report.js"
UNTIMED = "Speedups are unknown, and so are fast_p for p > 0: {why}."


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that the packaged admission list refuses."""

    task: str
    known: KnownAdmission
    is_left_out: bool

    def __str__(self) -> str:
        what = "left out" if self.is_left_out else "evaluated anyway"
        return f"Task {self.task} is {what}: {self.known}"


@dataclass(frozen=True)
class Results:
    """A finished evaluation: the answers and verdicts that the config asks for, and their metrics."""

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
        """The keys of this config's samples, task by task. The folder can hold more, from a run with more tasks."""
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
        """Metrics by KernelBench level; empty unless there are several."""
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
        """Metrics by seed; empty unless there are several. ``summary`` pools all seeds, with intervals over tasks."""
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
    """Return the contents of summary.json."""
    config, verdicts = results.config, results.verdicts
    answers = [results.all_samples[key] for key in results.keys]
    lengths = [sample.completion_tokens for sample in answers if sample.completion_tokens is not None]
    judged = [verdict for verdict in verdicts.values() if "torch" in verdict.versions]  # leaves out format errors
    return {
        "model": config.model,
        "tasks": config.tasks,
        "task_count": len(results.tasks),
        "tasks_fingerprint": getattr(results.tasks, "fingerprint", None),
        "samples_per_task": config.answers,
        "seeds": list(config.all_seeds),
        "backend": config.backend,
        # The verdict on code that does not parse has the device's number, not its name.
        "devices": sorted({v.device for v in judged if v.compiled} or {v.device for v in judged}),
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
    """Return the counts and the best speedups of a task's samples."""
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
    """Return the contents of table.md: all metrics as Markdown tables."""
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
    """Return the sentences that a reader needs to understand the numbers."""
    summary, found = results.summary, []
    if results.config.turns > 1:
        turns = results.config.turns
        found.append(f"The best of {turns} turns counts for each sample; turns.md has the metrics after every turn.")
    if summary.harness_failed:
        found.append(
            f"The judge itself failed on {summary.harness_failed} of {summary.samples} answers. No number below "
            "includes them; --resume judges them again."
        )
    if advice := advice_on_failure(results):
        found.append(advice)
    if any(estimate.value is None for estimate in summary.fast_p["eager"].values()) and summary.correct.of:
        interpreted = any(verdict.interpreted for verdict in results.verdicts.values())
        why = "kernels were run by an interpreter" if interpreted else "correct answers were not timed"
        found.append(UNTIMED.format(why=why))
    elif "compile" in summary.fast_p and summary.fast_p["compile"]["1"].value is None and summary.correct.of:
        found.append("Speedups over torch.compile are unknown: not every reference was timed under it.")
    found += [f"{one}." for one in results.refused]
    return found


def advice_on_failure(results: Results) -> str | None:
    """Return advice if all answers failed with the same outcome; None otherwise."""
    scored = [key for key in results.keys if results.verdicts[key].is_scored]
    outcomes = {results.verdicts[key].outcome for key in scored}
    if len(scored) < 2 or len(outcomes) > 1 or Outcome.CORRECT in outcomes:
        return None
    (outcome,) = outcomes
    reasons = Counter(results.verdicts[key].reason or "" for key in scored)
    cut_short = sum(results.all_samples[key].finish_reason == "length" for key in scored)
    if outcome is Outcome.FORMAT_ERROR and cut_short > len(scored) / 2:
        hint = (
            f"{cut_short} were cut off at {results.config.max_new_tokens} tokens: try a larger --max-new-tokens, or "
            "another --prompt-template"
        )
    elif outcome is Outcome.FORMAT_ERROR:
        others = [name for name in template_names() if name != results.config.prompt_template]
        hint = f"try the --prompt-template that the model was trained with ({', '.join(others)} or a file)"
    else:
        hint = "read an answer and its verdict in report.html; --turns 2 shows the verdicts to the model"
    return f"All {len(scored)} answers failed with {outcome}, most often: {reasons.most_common(1)[0][0]}. Hint: {hint}."


Table = tuple[list[str], list[list[str]]]


def tables(results: Results) -> list[Table]:
    """Return the tables of the report, each a header and rows of text. Metrics that were not measured have no row."""
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
    found.append((["metric", "value", "interval", "of"], [row for row in rows if row[1] != NO_VALUE]))
    if len(results.config.ks) > 1:
        header = ["pass@k", *(f"k = {k}" for k in results.config.ks)]
        rows = [[name, *(with_interval(one) for one in by_k.values())] for name, by_k in summary.pass_at_k.items()]
        found.append((header, [row for row in rows if set(row[1:]) != {NO_VALUE}]))
    timed = [p for p, estimate in summary.fast_p["eager"].items() if p != "0" and estimate.value is not None]
    for what, groups in (("tasks of", results.by_group), ("answers of", results.by_seed)):
        if groups:
            header = [what, "tasks", "compiled", "correct", *(f"fast_{p}" for p in timed)]
            found.append((header, [group_row(name, one, timed) for name, one in groups.items()]))
    outcomes = [[name, str(count), percent(count / summary.samples)] for name, count in summary.outcomes.items()]
    found.append((["outcome", "samples", "share"], outcomes))
    return found


def group_row(name: str, summary: Summary, thresholds: Sequence[str]) -> list[str]:
    fast = [percent(summary.fast_p["eager"][p].value) for p in thresholds]
    return [name, str(summary.tasks), percent(summary.compiled.value), percent(summary.correct.value), *fast]


def cells(estimate: Estimate, shown: Any = percent) -> list[str]:
    """Return the value and its interval.

    >>> cells(Estimate(0.5, 0.25, 0.75, 8))
    ['50.0%', '25.0% to 75.0%']
    """
    known = estimate.low is not None and estimate.high is not None
    return [shown(estimate.value), f"{shown(estimate.low)} to {shown(estimate.high)}" if known else NO_VALUE]


def samples(estimate: Estimate) -> str:
    """Return the number of samples that a metric averages over.

    >>> samples(Estimate(0.5, of=2)), samples(Estimate(1.0, of=1)), samples(Estimate(None))
    ('2 samples', '1 sample', '–')
    """
    return f"{estimate.of} sample{'' if estimate.of == 1 else 's'}" if estimate.of else NO_VALUE


def with_interval(estimate: Estimate) -> str:
    value, interval = cells(estimate)
    return value if interval == NO_VALUE else f"{value} ({interval})"


def html(results: Results) -> str:
    """Return the contents of report.html, a self-contained page."""
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
        baselines=[
            name for name in results.baselines if any(speedup(verdict, name) for verdict in results.verdicts.values())
        ],
        shown=results.config.report_samples,
    )


def task_view(results: Results, task: Task) -> dict[str, Any]:
    """Return a task as the page shows it: its row, its prompt and its best samples."""
    keys = [(task.id, sample) for sample in range(results.config.answers)]
    best = sorted(keys, key=lambda key: best_first(results.verdicts[key]))[: results.config.report_samples]
    row = task_row(results, task)
    ratios = row["best_speedup"]
    return {
        **row,
        "title": task.title,
        "messages": results.all_samples[keys[0]].messages,
        "speedups": ratios,
        "samples": [sample_view(results, key) for key in best],
        "hidden": len(keys) - len(best),
    }


def memory_text(verdict: Verdict) -> str | None:
    """Return GPU memory of a call of the candidate and of the reference in MiB; None if it was not measured.

    >>> from kernel_coder.judge import example_verdict
    >>> memory_text(example_verdict(memory_bytes=1 << 20, reference_memory_bytes=2 << 20))
    '1 MiB (reference 2 MiB)'
    """
    if verdict.memory_bytes is None or verdict.reference_memory_bytes is None:
        return None
    mine, theirs = (size / (1 << 20) for size in (verdict.memory_bytes, verdict.reference_memory_bytes))
    return f"{mine:.4g} MiB (reference {theirs:.4g} MiB)"


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
        "library share": None if verdict.library_share is None else percent(verdict.library_share),
        "roofline": None if verdict.roofline_share is None else percent(verdict.roofline_share),
        "memory": memory_text(verdict),
        "other sizes": verdict.specialised,
        "same bits twice": {True: "yes", False: "no", None: None}[verdict.deterministic],
        "clock": verdict.clock_note,
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
    """Return the verdict as the page shows it: one field a line; of the measured times only their number."""
    fields = orjson.loads(verdict.to_json())
    for name in ("runtimes_ms", "reference_runtimes_ms"):
        if fields[name]:
            fields[name] = f"{len(fields[name])} times, in verdicts.jsonl"
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode()


def best_first(verdict: Verdict) -> tuple[bool, float, bool, bool]:
    """Return a sort key: correct verdicts first, the fastest first, then compiled ones; ``harness_failed`` last."""
    return not verdict.correct, -(verdict.speedup or 0.0), not verdict.compiled, not verdict.is_scored

"""Builds report.html, a self-contained page about a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kernel_coder.pages import NO_VALUE, percent, render, visible
from kernel_coder.report.charts import legend, shown, svg
from kernel_coder.report.contents import COLOURS, MEANINGS, Section, duration, phases, rejections, sections
from kernel_coder.report.findings import checks, ends, held_out, held_out_tasks, story
from kernel_coder.report.folder import Run
from kernel_coder.report.samples import (
    MAX_TEXTS,
    Reference,
    apart,
    asked_module,
    difference,
    messages_of,
    number,
    outcome_of,
    reason_of,
    references,
    shortened,
    shown_verdict,
    turns_of,
    verdict_of,
)
from kernel_coder.report.timeline import timeline

TEMPLATE, SCRIPT = "report.html.jinja", "report.js"
FREQUENT = 12
"""Upper limit for the rows in the table of frequent failures, so that the page stays readable."""


def html(run: Run) -> str:
    """Return the page as HTML."""
    samples, prompts, left_out = sample_views(run)
    found, drawn = checks(run), sections(run)
    return render(
        __package__,
        TEMPLATE,
        SCRIPT,
        run=run,
        title=f"{run.model}: {run.name}",
        what=what(run),
        state=state(run),
        numbers=numbers(run),
        held_out=held_out(run),
        story=story(run),
        checks=found,
        warnings=sum(check.state == "warning" for check in found),
        sections=[section_view(section) for section in drawn],
        thinned=max((chart.thinned for section in drawn for chart in section.charts), default=1),
        verdict_table=verdict_table(run),
        rejections=rejection_table(run),
        frequent=frequent_reasons(run),
        times=time_table(run),
        timeline=timeline(run),
        samples=samples,
        prompts=prompts,
        left_out=left_out,
        outcomes=sorted(
            {view["outcome"] for view in samples if view["outcome"]}, key=lambda one: (COLOURS.get(one, 99), one)
        ),
        meanings=MEANINGS,
        settings=yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True) if run.config else "",
        facts=facts(run),
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        percent=percent,
        shown=shown,
        NO_VALUE=NO_VALUE,
    )


def what(run: Run) -> str:
    """Return a description of the run for readers who know nothing about it."""
    setting = run.setting
    if run.kind == "supervised":
        text = (
            f"The language model {run.model} was trained to imitate known answers (supervised fine-tuning). It sees a "
            "PyTorch module and an equivalent module with its own GPU kernels, and learns to predict the second, token "
            "by token."
        )
        examples = (run.summary or {}).get("examples")
        return text + (f" It learned from {examples:,} such pairs." if isinstance(examples, int) else "")
    group, batch = setting("rollout", "num_generations"), setting("optim", "per_device_train_batch_size")
    text = (
        f"The language model {run.model} was trained by reinforcement learning to rewrite PyTorch modules with its own "
        "GPU kernels. In every step it answers some tasks several times"
    )
    rounds = setting("optim", "steps_per_generation") or setting("optim", "gradient_accumulation_steps") or 1
    if all(isinstance(one, int) and one > 0 for one in (group, batch, rounds)):
        tasks = batch * rounds // group
        text += f" (here {tasks} {'task' if tasks == 1 else 'tasks'}, {group} answers each)"
    judged = run.curve("judge/correct") is not None
    text += ", and a judge runs each answer." if judged else "."
    turns = setting("rollout", "max_turns")
    if isinstance(turns, int) and turns > 1:
        text += f" It then sees the verdict and may answer again, up to {turns} times in total."
    text += (
        " Each answer gets a reward. The update makes those answers more likely that have a higher reward than others "
        "to the same task."
    )
    rewards = setting("rewards")
    if isinstance(rewards, list) and rewards and all(isinstance(one, Mapping) and "name" in one for one in rewards):
        parts = [f"{one['name']} (weight {number(one.get('weight', 1)) or 0:g})" for one in rewards]
        text += f" The rewards are {', '.join(parts)}"
        stages = setting("stages")
        several = isinstance(stages, list) and len(stages) > 1
        text += f", in {len(stages)} stages with different rewards." if several else "."
    return text


def state(run: Run) -> str:
    """Return the state of the run in a sentence."""
    planned = f" of {run.planned_steps}" if run.planned_steps else ""
    at = f"step {run.last_step}{planned}"
    quiet = max(0.0, time.time() - run.written_at)
    sentence = {
        "finished": f"Finished at {at}.",
        "stopped": f"Stopped at {at} by a signal; it can be resumed.",
        "running": f"Running: {at}, written {duration(quiet)} ago. This page shows the run at that time.",
        "ended": f"Ended at {at} without a summary: it was killed, or it has written nothing for {duration(quiet)}.",
    }[run.status]
    if run.starts > 1:
        sentence += f" It was started {run.starts} times; the curves continue across resumes."
    return sentence


def numbers(run: Run) -> list[tuple[str, str, str]]:
    """Return the headline numbers: a label, a value and an explanation each."""
    found = []
    for one in held_out(run)[:2]:
        first, last = one.interval(one.first_interval), one.interval(one.last_interval)
        if one.first_step == one.last_step:
            found.append((f"held out: {one.label}", one.text(one.last), last or f"at step {one.last_step}"))
        else:
            about = f"{first} → {last}" if first else f"step {one.first_step} → {one.last_step}"
            found.append((f"held out: {one.label}", f"{one.text(one.first)} → {one.text(one.last)}", about))
    for name, label, unit in (
        ("judge/correct", "correct in training", "share"),
        ("reward", "reward in training", "number"),
        ("loss", "loss", "number"),
    ):
        curve = run.curve(name)
        if curve is not None and len(found) < 4 and not (name == "loss" and run.kind == "reinforcement"):
            end = ends(len(curve))
            before, after = sum(curve.values[:end]) / end, sum(curve.values[-end:]) / end
            values = f"{shown(before, unit)} → {shown(after, unit)}"  # type: ignore[arg-type]
            found.append((label, values, "first quarter of the steps → last quarter"))
    found.append(("steps", f"{run.last_step:,}", f"{duration(run.seconds)} in steps" if run.seconds else NO_VALUE))
    trained = run.curve("num_tokens")
    if trained is not None:
        found.append(("tokens trained on", f"{trained.last:,.0f}", "tokens in the loss"))
    tasks = held_out_tasks(run)
    known = (run.summary or {}).get("tasks")
    if isinstance(known, int):
        found.append(("tasks", f"{known:,}", f"and {tasks} held out" if tasks else "none held out"))
    return found


def section_view(section: Section) -> dict[str, Any]:
    views = []
    for chart in section.charts:
        picture = svg(chart)
        if picture:
            views.append(
                {
                    "title": chart.title,
                    "stacked": chart.stacked,
                    "caption": chart.caption,
                    "svg": picture,
                    "legend": legend(chart),
                    "last": [(one.label, shown(one.values[-1], chart.unit)) for one in chart.lines if len(one)],
                    "step": max(one.steps[-1] for one in chart.lines if len(one)),
                }
            )
    return {
        "key": section.key,
        "title": section.title,
        "text": section.text,
        "beside": [view for view in views if view["stacked"]],
        "charts": [view for view in views if not view["stacked"]],
        "at_zero": section.at_zero,
    }


def verdict_table(run: Run) -> list[dict[str, Any]]:
    """Return the share of each outcome in the first and the last quarter of the steps, and in all of them."""
    prefix = "judge/" if run.curve("judge/correct") else "eval/judge/"
    rows = []
    for name in COLOURS:
        curve = run.curve(f"{prefix}{name}")
        if curve is None:
            continue
        if not any(curve.values) and name != "correct":
            continue
        end = ends(len(curve))
        rows.append(
            {
                "name": name,
                "colour": COLOURS[name],
                "meaning": MEANINGS[name],
                "first": sum(curve.values[:end]) / end,
                "last": sum(curve.values[-end:]) / end,
                "all": sum(curve.values) / len(curve),
            }
        )
    return rows


def rejection_table(run: Run) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "count": sum(steps.values()), "first": min(steps), "last": max(steps)}
        for kind, steps in rejections(run)
    ]


def frequent_reasons(run: Run) -> list[dict[str, Any]]:
    """Return the most frequent kinds of failures."""
    rows: list[dict[str, Any]] = [
        {"outcome": outcome, "kind": kind, "count": sum(steps.values()), "first": min(steps), "last": max(steps)}
        for (outcome, kind), steps in run.samples.reasons.items()
        if outcome != "rejected"
    ]
    return sorted(rows, key=lambda row: -row["count"])[:FREQUENT]


def time_table(run: Run) -> list[tuple[str, float, float]]:
    """Return for each phase of a step its label, its share of the time, and its mean time in seconds."""
    step = run.curve("time/step_s")
    if step is None:
        return []
    seconds = {
        one.label: sum(share * whole for share, whole in zip(one.values, step.values, strict=True))
        for one in phases(run).values()
    }
    total = sum(seconds.values()) or 1.0
    return [(label, spent / total, spent / len(step)) for label, spent in seconds.items()]


def facts(run: Run) -> dict[str, str]:
    """Return facts from the config and the summary, by name."""
    known: dict[str, Any] = {
        "folder": run.name,
        "data": run.setting("data", "path"),
        "answers in samples.jsonl": f"{run.samples.total:,}",
    }
    for name in (
        "data_fingerprint",
        "weights_sha256",
        "seed",
        "device",
        "threads",
        "kernel_coder",
        "torch",
        "python",
        "finished_at",
    ):
        known[name.replace("_", " ")] = (run.summary or {}).get(name)
    return {name: str(value) for name, value in known.items() if value is not None}


# ---- samples


def sample_views(run: Run) -> tuple[list[dict[str, Any]], list[list[dict[str, str]]], int]:
    """Return the answers on the page (newest first), their prompts (each once), and the number of answers left out.

    If the texts exceed ``MAX_TEXTS``, the latest answers are left out first.
    """
    records = run.samples.records
    known = references(run.config, {str(record.get("task")) for record in records})
    prompts: list[list[dict[str, str]]] = []
    places: dict[str, int] = {}
    views: list[dict[str, Any]] = []
    room, left_out = MAX_TEXTS, 0
    for position in sorted(range(len(records)), key=lambda place: (run.samples.why[place].endswith("latest"), -place)):
        record = records[position]
        messages = messages_of(record.get("prompt"))
        key = repr(messages)
        view = sample_view(record, known.get(str(record.get("task"))))
        size = _size(view) + (0 if key in places else len(key))
        if size > room:
            left_out += 1
            continue
        room -= size
        if key not in places:
            places[key] = len(prompts)
            prompts.append([{**message, "content": shortened(message["content"])} for message in messages])
        view |= {"prompt": places[key], "why": run.samples.why[position], "position": position}
        views.append(view)
    return sorted(views, key=lambda view: -view["position"]), prompts, left_out


def sample_view(record: Mapping[str, Any], reference: Reference | None) -> dict[str, Any]:
    verdict = verdict_of(record)
    answer = visible(str(record.get("completion", "")))
    parts = apart(answer)
    turns = turns_of(record)
    if not answer and turns:
        parts = apart(visible(turns[-1]["answer"]))
    if reference is None and (module := asked_module(record.get("prompt"))) is not None:
        reference = Reference("the module in the prompt", module)
    diff = None
    if parts["code"] is not None and reference is not None:
        diff = difference(visible(reference.text), parts["code"])
    speedup = number(verdict.get("speedup"))
    rewards = record.get("rewards")
    all_facts = {
        "finish": record.get("finish_reason"),
        "tokens": record.get("tokens"),
        "advantage": None if (value := number(record.get("advantage"))) is None else shown(value),
        "speedup": None if speedup is None else shown(speedup, "speedup"),
        "kernel share": None if (value := number(verdict.get("kernel_share"))) is None else percent(value),
        "roofline": None if (value := number(verdict.get("roofline_share"))) is None else percent(value),
        "other sizes": verdict.get("specialised"),
        "form": parts["form"],
    }
    feedback = verdict.get("feedback")
    return {
        "step": record["step"],
        "id": str(record.get("id", "")),
        "task": str(record.get("task", "")),
        "held_out": str(record.get("id", "")).startswith("eval/"),
        "outcome": outcome_of(record),
        "reason": reason_of(record),
        "reward": number(record.get("reward")),
        "rewards": {
            str(name): number(value) for name, value in (rewards.items() if isinstance(rewards, Mapping) else ())
        },
        "facts": {name: str(value) for name, value in all_facts.items() if value is not None},
        "thinking": None if parts["thinking"] is None else shortened(parts["thinking"]),
        "code": None if parts["code"] is None else shortened(parts["code"]),
        "whole": None if parts["whole"] is None else shortened(parts["whole"]),
        "turns": [{**turn, "answer": shortened(turn["answer"])} for turn in turns] if len(turns) > 1 else [],
        "diff": diff,
        "against": None if reference is None else reference.label,
        "feedback": shortened(feedback) if isinstance(feedback, str) and feedback else None,
        "verdict": shortened(shown_verdict(verdict)) if len(verdict) > 2 else None,
    }


def _size(view: Mapping[str, Any]) -> int:
    texts = [view[name] or "" for name in ("thinking", "code", "whole", "feedback", "verdict", "reason")]
    texts += [line for _, line in view["diff"] or ()]
    texts += [text for turn in view["turns"] for text in (turn["answer"], repr(turn["before"]))]
    return sum(map(len, texts)) + 40 * len(view["diff"] or ()) + 1000


def write(path: Path, text: str) -> None:
    """Writes the file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)

"""Chooses the charts of a run and groups them into sections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_coder.judge import Outcome
from kernel_coder.report.charts import PALETTE, Chart, Line, Unit, line
from kernel_coder.report.findings import held_out_tasks, share_interval
from kernel_coder.report.folder import Curve, Run

COLOURS = {
    "correct": 0,
    "wrong_output": 1,
    "runtime_error": 2,
    "compile_error": 3,
    "format_error": 4,
    "rejected": 5,
    "timeout": 6,
    "out_of_memory": 7,
    "crashed": 8,
    "harness_failed": 9,
}
"""Colours of the outcomes, ordered from good to bad."""

MEANINGS = {
    "correct": "ran, and its results match the reference",
    "wrong_output": "ran, but its results differ from the reference",
    "runtime_error": "compiled, but raised an error when it ran",
    "compile_error": "is not valid code, or its kernels do not compile",
    "format_error": "the answer has no code, or the code has no class ModelNew",
    "rejected": "broke a rule, for example has no kernel of its own",
    "timeout": "did not finish in time",
    "out_of_memory": "ran out of memory",
    "crashed": "its process died",
    "harness_failed": "the judge itself failed; this says nothing about the answer",
}
"""Explanations of the outcomes."""

MAX_OTHERS = 60
"""Upper limit for the charts in the last section, to keep the page small."""


@dataclass(frozen=True)
class Section:
    """Charts that answer one question. ``at_zero`` names charts that are left out because all values are zero."""

    key: str
    title: str
    text: str
    charts: tuple[Chart, ...]
    at_zero: tuple[str, ...] = ()


def sections(run: Run) -> list[Section]:
    """Return the run's sections; those without charts are left out."""
    draw = _Drawer(run)
    found = [
        Section("progress", "Did it get better?", _about_progress(run), _progress(run, draw)),
        Section(
            "rewards",
            "What it was rewarded for",
            "The reward of an answer is a weighted sum of these parts. If only one part rises, the model learned that "
            "part. Dots are held-out values.",
            _rewards(run, draw),
        ),
        Section("verdicts", "Verdicts on its answers", _about_verdicts(run), _verdicts(run)),
        Section(
            "health",
            "Is training healthy?",
            "These curves say little about quality. They show whether training is stable: no sudden jumps, and no "
            "curve that drops to zero.",
            _health(run, draw),
        ),
        Section("answers", "How long its answers are", "", _answers(draw)),
        Section("time", "Where the time goes", _about_time(run), _times(run, draw)),
        Section("drawing", "How tasks were chosen", "", _drawing(draw)),
    ]
    others = Section("others", "Other numbers", "All other values in metrics.jsonl, by name.", draw.others())
    return [_without_zeros(section) for section in (*found, others) if section.charts]


def _without_zeros(section: Section) -> Section:
    """Replaces charts whose values are all zero by their titles, except in sections where zero is important."""
    if section.key in ("progress", "rewards", "verdicts"):
        return section
    zero = tuple(chart.title for chart in section.charts if chart.is_zero)
    return replace(section, charts=tuple(chart for chart in section.charts if not chart.is_zero), at_zero=zero)


class _Drawer:
    """Makes charts from curves by name, and remembers which curves are drawn."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.drawn: set[str] = set()

    def take(self, name: str) -> Curve | None:
        curve = self.run.curve(name)
        if curve is not None:
            self.drawn.add(name)
        return curve

    def chart(self, title: str, caption: str, names: dict[str, str], unit: Unit = "number", **how: bool) -> list[Chart]:
        """Return a chart of those curves that the run has, or nothing. ``names`` maps curves to labels; held-out curves
        get dots.
        """
        lines = [
            line(curve, label, dots=name.startswith("eval/"), colour=COLOURS.get(label))
            for name, label in names.items()
            if (curve := self.take(name)) is not None
        ]
        return [Chart(title, caption, tuple(lines), unit, **how)] if lines else []

    def others(self) -> tuple[Chart, ...]:
        left = [curve for name, curve in self.run.curves.items() if name not in self.drawn]
        return tuple(Chart(curve.name, "", (line(curve, curve.name),)) for curve in left[:MAX_OTHERS])


def _about_progress(run: Run) -> str:
    if run.kind == "supervised":
        return (
            "The loss is the mean cross-entropy of the known answers' tokens; lower is better. Held-out tasks are "
            "never trained on: only they show whether the model generalises or memorises."
        )
    return (
        "Training values come from different tasks in each step, so they are noisy. Held-out values always come from "
        "the same tasks, which are never trained on: trust these first."
    )


def _progress(run: Run, draw: _Drawer) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    tasks = held_out_tasks(run)
    lines = []
    for name, label in (
        ("eval/judge/correct", "correct"),
        ("eval/judge/compiled", "compiled"),
        ("eval/format", "right form"),
    ):
        if (curve := draw.take(name)) is not None:
            lines.append(with_interval(line(curve, label, dots=True, colour=COLOURS.get(label)), tasks))
    if lines:
        band = f" Bands are 95% intervals for {tasks} independent answers, one for each task." if tasks else ""
        caption = "Shares of the answers to tasks that the model is never trained on." + band
        title = "Held-out tasks" if len(lines) > 1 else f"Held-out tasks: {lines[0].label}"
        charts.append(Chart(title, caption, tuple(lines), "share"))
    losses = {"loss": "training"} if run.kind == "supervised" else {}
    if "eval/loss" in run.curves:
        charts += draw.chart(
            "Held-out loss",
            "Cross-entropy of the known answers to tasks that are never trained on. If it rises while the training "
            "loss falls, the model memorises.",
            {**losses, "eval/loss": "held out"},
        )
    else:
        charts += draw.chart("Loss", "Mean cross-entropy of the known answers' tokens.", losses)
    charts += draw.chart(
        "Reward",
        "Mean reward of the answers in a step. Training maximises it, so it says only as much as the reward does.",
        {"reward": "training", "eval/reward": "held out"},
    )
    charts += draw.chart(
        "Correct answers in training",
        "Shares of a step's answers that compile and that are correct.",
        {"judge/correct": "correct", "judge/compiled": "compiled"},
        "share",
    )
    charts += draw.chart(
        "Speed of correct answers",
        "Speedup of correct answers over PyTorch (geometric mean); above 1 they are faster.",
        {"judge/speedup_geomean": "training", "eval/judge/speedup_geomean": "held out"},
        "speedup",
    )
    for prefix, where in (("correct_by_turn/", "training"), ("eval/correct_by_turn/", "held out")):
        names = _numbered(run, prefix)
        charts += draw.chart(
            f"Correct by turn, {where}",
            "Share of conversations with a correct answer within a number of turns. A gap between two lines shows "
            "that a further turn helped.",
            {name: f"by turn {name.removeprefix(prefix)}" for name in names},
            "share",
        )
    charts += draw.chart(
        "Reward by turn",
        "Mean reward of first answers, second answers and so on. Later answers should be better.",
        {name: f"turn {name.removeprefix('reward_by_turn/')}" for name in _numbered(run, "reward_by_turn/")},
    )
    return tuple(charts)


def with_interval(one: Line, tasks: int | None) -> Line:
    """Return the line with a 95% interval around each share."""
    if not tasks:
        return one
    bounds = [share_interval(value, tasks) for value in one.values]
    low, high = [bound[0] for bound in bounds], [bound[1] for bound in bounds]
    return Line(one.label, one.steps, one.values, low, high, one.dots, one.colour)


def _rewards(run: Run, draw: _Drawer) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    parts = [found[1] for name in run.curves if (found := re.fullmatch(r"(?:eval/)?rewards/(.+)/mean", name))]
    for part in dict.fromkeys(parts):
        names = {f"rewards/{part}/mean": "training", f"eval/rewards/{part}/mean": "held out"}
        charts += draw.chart(f"Part: {part}", f"Mean of the part {part} before its weight.", names)
    charts += draw.chart(
        "Spread within a group",
        "How much the rewards of answers to the same task differ. The model learns from these differences: without any "
        "it learns nothing.",
        {"reward_std": "standard deviation"},
        from_zero=True,
    )
    charts += draw.chart(
        "Groups without spread",
        "Share of tasks whose answers all have the same reward, because all or none are solved. They teach nothing.",
        {"frac_reward_zero_std": "groups without spread"},
        "share",
    )
    return tuple(charts)


def _about_verdicts(run: Run) -> str:
    if _outcome_curves(run):
        return (
            "The judge runs each answer in a sandbox and compares its results with the reference on random inputs. "
            "Green should grow. Rejected answers broke a rule, for example by calling PyTorch instead of a kernel."
        )
    return ""


def _outcome_curves(run: Run) -> dict[str, Curve]:
    prefix = "judge/" if run.curve("judge/correct") else "eval/judge/"
    return {one.value: curve for one in Outcome if (curve := run.curve(f"{prefix}{one.value}")) is not None}


def _verdicts(run: Run) -> tuple[Chart, ...]:
    curves = _outcome_curves(run)
    if not curves:
        return ()
    steps = next(iter(curves.values())).steps
    lines = [
        Line(name.replace("_", " "), curve.steps, curve.values, colour=COLOURS[name])
        for name in COLOURS
        if (curve := curves.get(name)) is not None and curve.steps == steps and any(curve.values)
    ]
    where = "in training" if run.curve("judge/correct") else "on held-out tasks"
    charts = [
        Chart(
            f"Verdicts {where}",
            "Shares of a step's answers by verdict.",
            tuple(lines),
            "share",
            True,
        )
    ]
    kinds = rejections(run)
    if kinds:
        totals = {step: sum(counts.values()) for step, counts in run.samples.outcomes.items()}
        order = sorted(totals)
        some = [
            Line(kind, order, [by_step.get(step, 0) / totals[step] for step in order]) for kind, by_step in kinds[:6]
        ]
        charts.append(
            Chart(
                "Rejections by kind",
                "Shares of all answers. If a kind grows, the model is learning that trick.",
                tuple(some),
                "share",
            )
        )
    return tuple(charts)


def rejections(run: Run) -> list[tuple[str, dict[int, int]]]:
    """Return the kinds of rejections, each with its number of answers by step; the most frequent first."""
    found = [(kind, dict(steps)) for (outcome, kind), steps in run.samples.reasons.items() if outcome == "rejected"]
    return sorted(found, key=lambda one: -sum(one[1].values()))


def _health(run: Run, draw: _Drawer) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    if run.kind == "reinforcement":
        charts += draw.chart(
            "Loss", "Policy gradient loss. It stays around zero and does not measure quality.", {"loss": "loss"}
        )
    charts += draw.chart(
        "Distance from the start (KL)",
        "KL divergence from the initial model, in nats per token; 0 if the run does not measure it.",
        {"kl": "KL"},
        from_zero=True,
    )
    charts += draw.chart(
        "Entropy",
        "Entropy of the next token, in nats. A slow fall is normal; near zero the model always gives the same answer "
        "and no longer explores.",
        {"entropy": "training", "eval/entropy": "held out"},
        from_zero=True,
    )
    charts += draw.chart(
        "Gradient norm",
        "Norm of the gradient before clipping. Spikes matter if other curves jump at the same steps.",
        {"grad_norm": "gradient norm"},
        from_zero=True,
    )
    charts += draw.chart(
        "Learning rate",
        "Learning rate of the schedule.",
        {"learning_rate": "learning rate"},
        from_zero=True,
        noisy=False,
    )
    charts += draw.chart(
        "Clipped tokens",
        "Share of tokens whose probability ratio was clipped.",
        {"clip_ratio/low_mean": "too low", "clip_ratio/high_mean": "too high"},
        "share",
    )
    charts += draw.chart(
        "Sampler and trainer",
        "Difference between the log-probs at sampling and in training; it should stay near 0.",
        {
            "approx_kl": "since sampling",
            "sampling/kl": "sampler to trainer",
            "sampling/logratio_mean": "mean log ratio",
        },
    )
    charts += draw.chart(
        "Unscored answers and skipped updates",
        "Answers without a reward, and updates that were skipped because they were not finite.",
        {"unscored": "unscored answers", "skipped_updates": "skipped updates", "reward_errors": "errors of rewards"},
        from_zero=True,
    )
    return tuple(charts)


def _answers(draw: _Drawer) -> tuple[Chart, ...]:
    lengths = {
        f"completions/{name}_length": label
        for name, label in (("mean", "mean"), ("min", "shortest"), ("max", "longest"))
    }
    return (
        *draw.chart(
            "Length of answers",
            "In tokens. Longer answers should come with better rewards; a collapse means that the model gives up.",
            {**lengths, "eval/completions/mean_length": "held-out mean"},
            from_zero=True,
        ),
        *draw.chart(
            "Cut off",
            "Share of answers that reached the token limit; their code is rarely complete.",
            {"completions/clipped_ratio": "training", "eval/completions/clipped_ratio": "held out"},
            "share",
        ),
        *draw.chart("Turns", "Mean number of answers in a conversation.", {"turns/mean": "mean number of turns"}),
    )


def _about_time(run: Run) -> str:
    step = run.curve("time/step_s")
    if step is None:
        return ""
    middle = sorted(step.values)[len(step) // 2]
    return f"Half of the steps take less than {middle:.3g} seconds. All steps together took {duration(run.seconds)}."


PHASES = {
    "rollout": "writing answers",
    "judge": "judging",
    "wait_answers": "waiting for answers",
    "wait_verdicts": "waiting for verdicts",
    "load": "new weights for the sampler",
    "reward": "rewards",
    "logprobs": "old and reference probabilities",
    "update": "update",
    "eval": "held-out tasks",
    "data": "data",
}
NO_PHASE = {"step", "verdict_p50", "verdict_p95"}


def phases(run: Run) -> dict[str, Line]:
    """Return each phase's share of a step, by name; ``idle`` is the rest. If phases overlap, shares are of their
    sum."""
    step = run.curve("time/step_s")
    if step is None:
        return {}
    seconds: dict[str, dict[int, float]] = {}
    for name, curve in run.curves.items():
        found = re.fullmatch(r"time/(.+)_s", name)
        if found and found[1] not in NO_PHASE:
            seconds[found[1]] = dict(zip(curve.steps, curve.values, strict=True))
    spent = {at: sum(phase.get(at, 0.0) for phase in seconds.values()) for at in step.steps}
    whole = {at: max(total, spent[at], 1e-12) for at, total in zip(step.steps, step.values, strict=True)}
    order = [name for name in PHASES if name in seconds] + sorted(set(seconds) - set(PHASES))
    lines = {
        name: Line(PHASES.get(name, name), step.steps, [seconds[name].get(at, 0.0) / whole[at] for at in step.steps])
        for name in order
    }
    if lines:
        rest = [1 - spent[at] / whole[at] for at in step.steps]
        lines["idle"] = Line("idle and other", step.steps, rest, colour=10)
    return lines


def _times(run: Run, draw: _Drawer) -> tuple[Chart, ...]:
    shares = {name: one for name, one in phases(run).items() if sum(one.values) > 0.002 * len(one)}
    charts = []
    if shares:
        draw.drawn |= {name for name in run.curves if re.fullmatch(r"time/.+_s", name) and "verdict_p" not in name}
        draw.drawn |= {name for name in run.curves if name.startswith(("time/from/", "time/until/"))}
        lines = tuple(
            Line(one.label, one.steps, one.values, colour=10 if name == "idle" else PALETTE[number])
            for number, (name, one) in enumerate(shares.items())
        )
        charts.append(Chart("Shares of a step", "Time of each part of a step.", lines, "share", True))
        step = run.curve("time/step_s")
        if step is not None:
            charts.append(Chart("Seconds per step", "Whole step.", (line(step, "step"),), "seconds", from_zero=True))
    charts += draw.chart(
        "Tokens per second",
        "Generated tokens, by time of sampling and by time of the whole step.",
        {
            "time/tokens_per_second": "whole step",
            **(
                {"time/rollout_tokens_per_second": "while sampling"}
                if (curve := run.curve("time/rollout_tokens_per_second")) and any(curve.values)
                else {}
            ),
        },
        from_zero=True,
    )
    charts += draw.chart(
        "Waiting for verdicts",
        "Share of a step in which everything waits for the judge.",
        {"time/verdict_wait_share": "share of the step"},
        "share",
        from_zero=True,
    )
    charts += draw.chart(
        "Seconds per verdict",
        "Time of the judge for one answer.",
        {"time/verdict_p50_s": "median", "time/verdict_p95_s": "95th percentile"},
        "seconds",
        from_zero=True,
    )
    return tuple(charts)


def _drawing(draw: _Drawer) -> tuple[Chart, ...]:
    tried = {"sampler/tasks_tried": "tried", "sampler/useful_tasks": "sometimes solved"}
    rate = {"sampler/success_rate": "success rate"}
    return (
        *draw.chart("Tasks tried", "Number of different tasks so far.", tried, noisy=False),
        *draw.chart("Success by task", "Mean success rate of the tasks.", rate, "share", noisy=False),
        *draw.chart(
            "Level of difficulty",
            "Harder tasks are added once easier ones are solved.",
            {"sampler/level": "level"},
            noisy=False,
        ),
        *draw.chart("Stage of the rewards", "Each stage has its own rewards.", {"stage": "stage"}, noisy=False),
    )


def _numbered(run: Run, prefix: str) -> Sequence[str]:
    return sorted(
        (name for name in run.curves if name.startswith(prefix) and name.removeprefix(prefix).isdigit()),
        key=lambda name: int(name.removeprefix(prefix)),
    )


def duration(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> duration(42), duration(200), duration(7500)
    ('42 seconds', '3.3 minutes', '2.1 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"

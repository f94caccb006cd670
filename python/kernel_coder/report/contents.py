"""Which charts a run has, in the order in which a reader asks for them."""

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
"""Of outcomes; from good to bad."""

MEANINGS = {
    "correct": "it ran and gave the reference's results",
    "wrong_output": "it ran and gave other results",
    "runtime_error": "it compiled and failed while it ran",
    "compile_error": "it is no program, or its kernels do not compile",
    "format_error": "no code in the answer, or no class ModelNew in the code",
    "rejected": "it broke the rules: for instance, no kernel of its own",
    "timeout": "it did not end in time",
    "out_of_memory": "it ran out of memory",
    "crashed": "its process died",
    "harness_failed": "the judge itself failed: this says nothing about the answer",
}

MAX_OTHERS = 60


@dataclass(frozen=True)
class Section:
    """Charts that answer one question, and the titles of those that would only show a line at zero."""

    key: str
    title: str
    text: str
    charts: tuple[Chart, ...]
    at_zero: tuple[str, ...] = ()


def sections(run: Run) -> list[Section]:
    """Every chart of the run, by question; sections without any are left out."""
    draw = _Drawer(run)
    found = [
        Section("progress", "Did it get better?", _about_progress(run), _progress(run, draw)),
        Section(
            "rewards",
            "What it was rewarded for",
            "The reward of an answer is a weighted sum of these parts. If one part rises and the others do not, that "
            "part is what was learned. Held-out values, where the run has them, are dots.",
            _rewards(run, draw),
        ),
        Section("verdicts", "What became of its answers", _about_verdicts(run), _verdicts(run)),
        Section(
            "health",
            "Is training healthy?",
            "These curves say little about quality. They show whether the updates are sane: no sudden jumps, no curve "
            "that has died.",
            _health(run, draw),
        ),
        Section("answers", "How long its answers are", "", _answers(draw)),
        Section("time", "Where the time goes", _about_time(run), _times(run, draw)),
        Section("drawing", "Which tasks it was given", "", _drawing(draw)),
    ]
    others = Section(
        "others", "Every other number", "As the run wrote it, by its name in metrics.jsonl.", draw.others()
    )
    return [_without_zeros(section) for section in (*found, others) if section.charts]


def _without_zeros(section: Section) -> Section:
    """A line at zero is news among what should grow; elsewhere a word is enough."""
    if section.key in ("progress", "rewards", "verdicts"):
        return section
    zero = tuple(chart.title for chart in section.charts if chart.is_zero)
    return replace(section, charts=tuple(chart for chart in section.charts if not chart.is_zero), at_zero=zero)


class _Drawer:
    """Makes charts of curves by name, and knows which were not drawn yet."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.drawn: set[str] = set()

    def take(self, name: str) -> Curve | None:
        curve = self.run.curve(name)
        if curve is not None:
            self.drawn.add(name)
        return curve

    def chart(self, title: str, caption: str, names: dict[str, str], unit: Unit = "number", **how: bool) -> list[Chart]:
        """A chart of the curves that the run has, by their labels; held-out ones are dots."""
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
            "Loss is how surprised the model is by the next token of an answer that it is shown; lower is better. "
            "Held-out tasks are never trained on: only they can tell learning from learning by heart."
        )
    return (
        "Training values come from tasks that the model learns from, and from other tasks in each step, so they jump. "
        "Held-out values come from the same tasks every time, which are never trained on: believe these first."
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
        band = f" Bands are 95% intervals, as if each of the {tasks} tasks were one answer." if tasks else ""
        caption = "Shares of the answers to tasks that the model is never trained on, as the judge says." + band
        title = "Held-out tasks" if len(lines) > 1 else f"Held-out tasks: {lines[0].label}"
        charts.append(Chart(title, caption, tuple(lines), "share"))
    losses = {"loss": "training"} if run.kind == "supervised" else {}
    if "eval/loss" in run.curves:
        charts += draw.chart(
            "Held-out loss",
            "Surprise at the known answers of tasks that are never trained on. If it rises while the training loss "
            "falls, the model learns by heart.",
            {**losses, "eval/loss": "held out"},
        )
    else:
        charts += draw.chart("Loss", "Surprise at the next token of the answers that it is shown.", losses)
    charts += draw.chart(
        "Reward",
        "Mean reward of the answers in a step: what training drives up. It is only worth as much as what is rewarded.",
        {"reward": "training", "eval/reward": "held out"},
    )
    charts += draw.chart(
        "Answers that work, in training",
        "Shares of a step's answers that compile, and that give the right results.",
        {"judge/correct": "correct", "judge/compiled": "compiled"},
        "share",
    )
    charts += draw.chart(
        "Speed of correct answers",
        "How many times faster than PyTorch correct answers are (geometric mean); above 1 they are worth having.",
        {"judge/speedup_geomean": "training", "eval/judge/speedup_geomean": "held out"},
        "speedup",
    )
    for prefix, where in (("correct_by_turn/", "training"), ("eval/correct_by_turn/", "held out")):
        names = _numbered(run, prefix)
        charts += draw.chart(
            f"Correct by turn, {where}",
            "Share of conversations with a correct answer in one of the first turns: where lines part, a turn helped.",
            {name: f"by turn {name.removeprefix(prefix)}" for name in names},
            "share",
        )
    charts += draw.chart(
        "Reward by turn",
        "Mean reward of the first answers, the second ones and so on. Later ones should be better.",
        {name: f"turn {name.removeprefix('reward_by_turn/')}" for name in _numbered(run, "reward_by_turn/")},
    )
    return tuple(charts)


def with_interval(one: Line, tasks: int | None) -> Line:
    """The line with an interval around each share."""
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
        "How much the rewards of answers to the same task differ. Answers are compared with each other: without spread "
        "nothing can be learned.",
        {"reward_std": "standard deviation"},
        from_zero=True,
    )
    charts += draw.chart(
        "Groups that teach nothing",
        "Share of tasks all of whose answers were worth the same: always solved, or never.",
        {"frac_reward_zero_std": "groups without spread"},
        "share",
    )
    return tuple(charts)


def _about_verdicts(run: Run) -> str:
    if _outcome_curves(run):
        return (
            "The judge runs each answer in a sandbox and compares its results with the reference on inputs that nobody "
            "can foresee. Green should grow. Rejected answers are those that tried to be paid without doing the work."
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
            "Every answer of a step has one verdict; the shares add up to 100%.",
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
                "Rejected, by what they tried",
                "Share of all answers. A kind that grows is a trick that the model is learning.",
                tuple(some),
                "share",
            )
        )
    return tuple(charts)


def rejections(run: Run) -> list[tuple[str, dict[int, int]]]:
    """Kinds of rejection with their number at each step, the most frequent first."""
    found = [(kind, dict(steps)) for (outcome, kind), steps in run.samples.reasons.items() if outcome == "rejected"]
    return sorted(found, key=lambda one: -sum(one[1].values()))


def _health(run: Run, draw: _Drawer) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    if run.kind == "reinforcement":
        charts += draw.chart(
            "Loss", "Of the policy gradient. It hovers around zero and does not measure quality.", {"loss": "loss"}
        )
    charts += draw.chart(
        "Distance from the start (KL)",
        "How far the model has moved from where it began, in nats a token; 0 where the run does not measure it.",
        {"kl": "KL"},
        from_zero=True,
    )
    charts += draw.chart(
        "Entropy",
        "How undecided the model is about the next token, in nats. A slow fall is learning; near zero it always says "
        "the same and cannot find anything new.",
        {"entropy": "training", "eval/entropy": "held out"},
        from_zero=True,
    )
    charts += draw.chart(
        "Gradient norm",
        "The size of an update before it is limited. Spikes are trouble if the curves above jump with them.",
        {"grad_norm": "gradient norm"},
        from_zero=True,
    )
    charts += draw.chart(
        "Learning rate",
        "How far an update goes, as planned.",
        {"learning_rate": "learning rate"},
        from_zero=True,
        noisy=False,
    )
    charts += draw.chart(
        "Clipped tokens",
        "Share of tokens whose update was held back because the model had already moved.",
        {"clip_ratio/low_mean": "too low", "clip_ratio/high_mean": "too high"},
        "share",
    )
    charts += draw.chart(
        "Sampler and trainer",
        "How far the probabilities at sampling and at training are apart; it should stay near 0.",
        {
            "approx_kl": "since sampling",
            "sampling/kl": "sampler to trainer",
            "sampling/logratio_mean": "mean log ratio",
        },
    )
    charts += draw.chart(
        "Without a reward, and skipped updates",
        "Answers that could not be scored, and updates that were refused because they were not finite.",
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
            "In tokens. Growth without better rewards is padding; collapse is giving up.",
            {**lengths, "eval/completions/mean_length": "held-out mean"},
            from_zero=True,
        ),
        *draw.chart(
            "Cut short",
            "Share of answers that reached the limit before they ended; their code is seldom whole.",
            {"completions/clipped_ratio": "training", "eval/completions/clipped_ratio": "held out"},
            "share",
        ),
        *draw.chart("Turns", "Answers of a conversation.", {"turns/mean": "mean number of turns"}),
    )


def _about_time(run: Run) -> str:
    step = run.curve("time/step_s")
    if step is None:
        return ""
    middle = sorted(step.values)[len(step) // 2]
    return f"Half of the steps take less than {middle:.3g} seconds. All together took {duration(run.seconds)}."


PHASES = {
    "rollout": "writing answers",
    "judge": "judging",
    "reward": "rewards",
    "logprobs": "old and reference probabilities",
    "update": "update",
    "eval": "held-out tasks",
    "data": "data",
}
NO_PHASE = {"step", "verdict_p50", "verdict_p95"}


def phases(run: Run) -> dict[str, Line]:
    """Each phase's share of a step by its name; ``idle`` is the rest. Phases that overlap share their sum."""
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
        draw.drawn |= {name for name in run.curves if re.fullmatch(r"time/.+_s", name) and "verdict" not in name}
        lines = tuple(
            Line(one.label, one.steps, one.values, colour=10 if name == "idle" else PALETTE[number])
            for number, (name, one) in enumerate(shares.items())
        )
        charts.append(Chart("Shares of a step", "What the seconds of a step were spent on.", lines, "share", True))
        step = run.curve("time/step_s")
        if step is not None:
            charts.append(Chart("Seconds a step", "The whole of it.", (line(step, "step"),), "seconds", from_zero=True))
    charts += draw.chart(
        "Tokens a second",
        "Written while answers are sampled, and over the whole step.",
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
        "Seconds a verdict",
        "How long the judge takes for one answer that runs.",
        {"time/verdict_p50_s": "half are faster", "time/verdict_p95_s": "95% are faster"},
        "seconds",
        from_zero=True,
    )
    return tuple(charts)


def _drawing(draw: _Drawer) -> tuple[Chart, ...]:
    tried = {"sampler/tasks_tried": "tried", "sampler/useful_tasks": "sometimes solved"}
    rate = {"sampler/success_rate": "success rate"}
    return (
        *draw.chart("Tasks tried", "Different tasks so far.", tried, noisy=False),
        *draw.chart("Success by task", "Mean over tasks of their measured success rates.", rate, "share", noisy=False),
        *draw.chart(
            "Level of difficulty",
            "Harder tasks come in once the easier ones work.",
            {"sampler/level": "level"},
            noisy=False,
        ),
        *draw.chart(
            "Stage of the rewards", "What is rewarded changes with the stage.", {"stage": "stage"}, noisy=False
        ),
    )


def _numbered(run: Run, prefix: str) -> Sequence[str]:
    return sorted(
        (name for name in run.curves if name.startswith(prefix) and name.removeprefix(prefix).isdigit()),
        key=lambda name: int(name.removeprefix(prefix)),
    )


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(200), duration(7500)
    ('42 seconds', '3.3 minutes', '2.1 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"

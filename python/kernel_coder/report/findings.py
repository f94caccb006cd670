"""Describes the numbers of a run in sentences, and checks whether they can be trusted.

The thresholds are rules of thumb, chosen so that this project's good runs get no warning. Each sentence states its
numbers, so that readers can judge for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_coder.report.charts import shown
from kernel_coder.report.folder import Curve, Run

MIN_STEPS = 10
"""Smallest number of steps for a statement about a trend; with fewer, the two ends of a curve have too few points."""

FEW_TASKS = 50
"""Number of held-out tasks below which the report warns: the 95% interval of a share then reaches 14 points or more."""

SOLVED = "eval/correct_by_turn/"
"""Prefix of the curves with the share of conversations that are solved within a number of turns."""

LOW_ENTROPY = 0.02
"""Entropy in nats per token below which a model nearly always gives the same answer."""

CLEAR_CHANGE_ERRORS = 3.0
"""Number of standard errors between the two ends of a noisy curve from which the report says that it has changed."""

State = Literal["fine", "warning", "unknown"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    sentence: str


@dataclass(frozen=True)
class Change:
    """The change of a curve between the means of its first and its last quarter."""

    before: float
    after: float
    errors: float  # after - before, in standard errors
    half_at: int  # the step by which half of the change had happened

    @property
    def rose(self) -> bool:
        return self.errors > CLEAR_CHANGE_ERRORS

    @property
    def fell(self) -> bool:
        return self.errors < -CLEAR_CHANGE_ERRORS


@dataclass(frozen=True)
class HeldOut:
    """A held-out value at its first and last step, with 95% intervals if it is a share."""

    name: str
    label: str
    first: float
    last: float
    first_step: int
    last_step: int
    first_interval: tuple[float, float] | None = None
    last_interval: tuple[float, float] | None = None

    @property
    def is_share(self) -> bool:
        return self.first_interval is not None

    @property
    def intervals_apart(self) -> bool | None:
        """Whether the two intervals are disjoint; None if there are no intervals or only one value."""
        if self.first_interval is None or self.last_interval is None or self.first_step == self.last_step:
            return None
        return self.last_interval[0] > self.first_interval[1] or self.last_interval[1] < self.first_interval[0]

    def text(self, value: float) -> str:
        return shown(value, "share" if self.is_share else "number")

    def interval(self, bounds: tuple[float, float] | None) -> str:
        return "" if bounds is None else f"{self.text(bounds[0])} to {self.text(bounds[1])}"


def share_interval(share: float, of: int) -> tuple[float, float]:
    """Return the 95% interval of a share of ``of`` independent answers (Wilson 1927).

    >>> [round(bound, 3) for bound in share_interval(0.0, 16)], [round(bound, 3) for bound in share_interval(0.5, 100)]
    ([0.0, 0.194], [0.404, 0.596])
    """
    z, share = 1.959964, min(max(share, 0.0), 1.0)
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return (max(0.0, middle - reach) if share > 0 else 0.0), (min(1.0, middle + reach) if share < 1 else 1.0)


def held_out_tasks(run: Run) -> int | None:
    """Return the number of held-out tasks; None if there are none or the run does not state it."""
    count = (run.summary or {}).get("held_out_tasks") or run.setting("eval", "num_tasks")
    if run.kind == "supervised" and "eval/format" in run.curves:
        count = run.setting("eval", "num_answered")
    return count if isinstance(count, int) and count > 0 else None


def held_out(run: Run) -> list[HeldOut]:
    """Return the held-out values at their first and last step, the most important first."""
    turns = [int(name.rpartition("/")[2]) for name in run.curves if name.startswith(SOLVED)]
    names = {
        **({f"{SOLVED}{max(turns)}": f"conversations solved within {max(turns)} turns"} if turns else {}),
        "eval/judge/correct": "answers that are correct",
        "eval/judge/compiled": "answers that compile",
        "eval/format": "answers in the right form",
        "eval/reward": "reward",
        "eval/loss": "loss",
    }
    values = {"eval/reward", "eval/loss"}
    tasks = held_out_tasks(run)
    found = []
    for name, label in names.items():
        curve = run.curve(name)
        if curve is None:
            continue
        first = last = None
        if name not in values and tasks:
            first, last = share_interval(curve.first, tasks), share_interval(curve.last, tasks)
        found.append(HeldOut(name, label, curve.first, curve.last, curve.steps[0], curve.steps[-1], first, last))
    return found


def change(curve: Curve | None) -> Change | None:
    """Return how a noisy curve changed; None if it has fewer than ``MIN_STEPS`` values."""
    if curve is None or len(curve) < MIN_STEPS:
        return None
    some = ends(len(curve))
    begin, end = curve.values[:some], curve.values[-some:]
    before, after = _mean(begin), _mean(end)
    error = math.sqrt(_variance(begin) / len(begin) + _variance(end) / len(end))
    apart = (
        (after - before) / error if error > 0 else math.copysign(math.inf, after - before) if after != before else 0.0
    )
    return Change(before, after, apart, _half_way(curve, before, after, some))


def ends(points: int) -> int:
    """Return the number of points that count as the beginning and as the end of a curve: a quarter, but at least
    one."""
    return max(1, points // 4)


def _after(curve: Curve | None, step: int) -> Curve | None:
    """Return the part of a curve after a step."""
    if curve is None:
        return None
    first = sum(each <= step for each in curve.steps)
    return Curve(curve.name, curve.steps[first:], curve.values[first:])


def _half_way(curve: Curve, before: float, after: float, reach: int) -> int:
    """Return the step from which the moving mean over ``reach`` values stays beyond the middle of ``before`` and
    ``after``."""
    middle, rising = (before + after) / 2, after > before
    at = curve.steps[-1]
    for place in range(len(curve) - reach, -1, -1):
        mean = _mean(curve.values[place : place + reach])
        if (mean < middle) == rising:
            break
        at = curve.steps[place + reach // 2]
    return at


def stage_changes(run: Run) -> list[int]:
    """Return the steps at which the stage, and with it the rewards, changed."""
    curve = run.curve("stage")
    if curve is None:
        return []
    pairs = zip(curve.steps, curve.values, (0.0, *curve.values[:-1]), strict=True)
    return [step for step, value, before in pairs if value != before]


def story(run: Run) -> list[str]:
    """Return the sentences about what the model learned, and when."""
    if not run.metrics or not run.curves:
        return ["No step is finished yet."]
    sentences = []
    correct = [curve for name in ("judge/correct", "eval/judge/correct") if (curve := run.curve(name)) is not None]
    if correct and not any(value for curve in correct for value in curve.values):
        sentences.append(
            "No answer was correct. Whatever the other curves show, the model has not learned to write working kernels."
        )
    sentences += [_about_held_out(one) for one in held_out(run)[:3] if one.first_step != one.last_step]
    steps = (
        (("loss", "The training loss", "number"),)
        if run.kind == "supervised"
        else (
            ("judge/compiled", "In training, the share of answers that compile", "share"),
            ("judge/correct", "In training, the share of answers that are correct", "share"),
            ("judge/speedup_geomean", "The speedup of correct answers over PyTorch", "speedup"),
            ("reward", "The training reward", "number"),
        )
    )
    for name, label, unit in steps:
        curve = run.curve(name)
        found = change(curve)
        if curve is not None and found is not None and any(curve.values):
            sentences.append(_about_change(label, found, unit))
    if changes := stage_changes(run):
        after = ", ".join(map(str, changes))
        sentences.append(f"The rewards changed after step {after}: values before and after cannot be compared.")
    if not sentences:
        sentences.append(
            f"After {run.last_step} steps there are too few values for a trend, which needs at least {MIN_STEPS} steps "
            "or held-out values at two steps."
        )
    return sentences


def _about_held_out(one: HeldOut) -> str:
    first, last = one.text(one.first), one.text(one.last)
    between = f"between step {one.first_step} and step {one.last_step}"
    if one.is_share:
        first, last = f"{first} ({one.interval(one.first_interval)})", f"{last} ({one.interval(one.last_interval)})"
    if one.first == one.last:
        return f"On held-out tasks, {one.label}: {first} {between}, unchanged."
    moved = f"On held-out tasks, {one.label}: from {first} to {last} {between}."
    if one.intervals_apart is None:
        return moved
    return moved + (
        " The 95% intervals do not overlap, so this is more than chance."
        if one.intervals_apart
        else " The 95% intervals overlap, so this may be chance."
    )


def _about_change(label: str, found: Change, unit: str) -> str:
    before, after = shown(found.before, unit), shown(found.after, unit)  # type: ignore[arg-type]
    if found.rose or found.fell:
        verb = "rose" if found.rose else "fell"
        return f"{label} {verb} from {before} to {after}; half of this change had happened by step {found.half_at}."
    return f"{label} did not clearly change: {before} in the first quarter of the steps, {after} in the last."


# ---- checks


def checks(run: Run) -> list[Check]:
    """Return the results of all checks that apply to the run, warnings first."""
    found = [_enough_steps(run), _held_out_size(run), _held_out_gain(run)]
    if run.kind == "reinforcement":
        found += [
            _is_judged(run),
            _reward_and_correct(run),
            _entropy(run),
            _spread(run),
            _rejected(run),
            _generalises(run),
            _cut_short(run),
        ]
    else:
        found += [_answers_are_run(run), _memorised(run)]
    found += [_harness(run), _timed(run), _skipped(run), _readable(run)]
    order = {"warning": 0, "unknown": 1, "fine": 2}
    return sorted((check for check in found if check is not None), key=lambda check: order[check.state])


def _enough_steps(run: Run) -> Check:
    name = "Enough steps"
    if run.last_step < MIN_STEPS:
        return Check(name, "warning", f"There are only {run.last_step} steps: too few to tell a trend from noise.")
    return Check(name, "fine", f"{run.last_step} steps are enough to see a trend.")


def _held_out_size(run: Run) -> Check:
    name, tasks = "Enough held-out tasks", held_out_tasks(run)
    if not any(key.startswith("eval/") for key in run.curves):
        return Check(
            name,
            "warning",
            "Nothing was measured on held-out tasks, so it is unknown whether the model generalises or memorises.",
        )
    if tasks is None:
        return Check(name, "unknown", "The run does not state the number of held-out tasks.")
    if tasks < FEW_TASKS:
        reach = 100 * 0.98 / math.sqrt(tasks)
        return Check(
            name,
            "warning",
            f"There are only {tasks} held-out tasks: the 95% interval of a share near one half is about {reach:.0f} "
            "percentage points each way, so small differences mean nothing.",
        )
    return Check(name, "fine", f"{tasks} held-out tasks.")


def _held_out_gain(run: Run) -> Check | None:
    name = "More than chance on held-out tasks"
    one = next((one for one in held_out(run) if one.name.startswith((SOLVED, "eval/judge/correct"))), None)
    if one is None:
        return None
    if one.first_step == one.last_step:
        return Check(name, "unknown", "Held-out answers were judged only once, so there is no before and after.")
    if one.last > one.first and one.intervals_apart:
        return Check(name, "fine", f"The 95% intervals before and after do not overlap: held-out {one.label}.")
    if one.first == one.last:
        return Check(name, "warning", f"The share is unchanged at {one.text(one.last)}: held-out {one.label}.")
    subject = "Solved held-out conversations" if one.name.startswith(SOLVED) else "Correct held-out answers"
    return Check(
        name,
        "warning",
        f"{subject} went from {one.text(one.first)} to {one.text(one.last)}; "
        + ("this is a loss." if one.intervals_apart else "the 95% intervals overlap, so this may be chance."),
    )


def _is_judged(run: Run) -> Check:
    name = "Answers are run"
    if run.curve("judge/correct") is None:
        return Check(
            name,
            "warning",
            "No judge ran the answers. The reward measures other properties, such as form or similarity to a known "
            "solution, and not whether any kernel works.",
        )
    return Check(name, "fine", "A judge ran the answers and compared their results with the reference.")


def _answers_are_run(run: Run) -> Check:
    name = "Answers are run"
    if run.curve("eval/judge/correct") is None:
        sentence = "No judge ran an answer: a low loss shows that the model imitates, not that its kernels work."
        return Check(name, "unknown", sentence)
    return Check(name, "fine", "A judge ran the held-out answers and compared their results with the reference.")


def _reward_and_correct(run: Run) -> Check | None:
    name = "Reward means correct answers"
    curves = run.curve("reward"), run.curve("judge/correct")
    since = ""
    if changes := stage_changes(run):
        curves = tuple(_after(curve, changes[-1]) for curve in curves)  # type: ignore[assignment]
        since = f" since the rewards changed after step {changes[-1]}"
    reward, correct = map(change, curves)
    if reward is None or correct is None:
        return Check(name, "unknown", f"There are too few steps{since}.") if since else None
    if reward.rose and not correct.rose:
        return Check(
            name,
            "warning",
            f"The reward rose{since} from {shown(reward.before)} to {shown(reward.after)} while the share of correct "
            f"answers did not ({shown(correct.before, 'share')} to {shown(correct.after, 'share')}): the reward comes "
            "from something else. Look at its parts.",
        )
    return Check(name, "fine", f"The reward did not rise{since} without the share of correct answers.")


def _entropy(run: Run) -> Check | None:
    name, found = "Still exploring", change(run.curve("entropy"))
    if found is None:
        return None
    moved = f"entropy went from {shown(found.before)} to {shown(found.after)} nats per token"
    if found.after < 0.2 * found.before or found.after < LOW_ENTROPY:
        always_low = found.before < LOW_ENTROPY
        subject = (
            f"The entropy was low from the start ({moved.removeprefix('entropy went ')})"
            if always_low
            else f"The model's {moved}"
        )
        has = "gives few different answers" if always_low else "has collapsed to a few answers"
        return Check(name, "warning", f"{subject}: the model {has} and will hardly find better ones.")
    return Check(name, "fine", f"The model's {moved}.")


def _spread(run: Run) -> Check | None:
    name, curve = "Groups differ", run.curve("frac_reward_zero_std")
    if curve is None:
        return None
    late = _mean(curve.values[-ends(len(curve)) :])
    sentence = f"In the last quarter of the steps {shown(late, 'share')} of the groups had no spread and taught nothing"
    if late >= 0.99:
        return Check(name, "warning", f"{sentence}: the model no longer learns anything.")
    if late > 0.8:
        return Check(name, "warning", f"{sentence}: the model learns from very few answers.")
    return Check(name, "fine", f"{sentence}.")


def _rejected(run: Run) -> Check | None:
    name, curve = "No tricks", run.curve("judge/rejected")
    if curve is None:
        return None
    late, found = _mean(curve.values[-ends(len(curve)) :]), change(curve)
    if late > 0.1 or (found is not None and found.rose and late > 0.02):
        return Check(
            name,
            "warning",
            f"The judge rejected {shown(late, 'share')} of the answers in the last quarter of the steps: the model "
            "breaks the rules. The table of rejections shows which.",
        )
    return Check(
        name, "fine", f"The judge rejected {shown(late, 'share')} of the answers in the last quarter of the steps."
    )


def _generalises(run: Run) -> Check | None:
    name = "Not memorised"
    training, held = change(run.curve("judge/correct")), run.curve("eval/judge/correct")
    if training is None or held is None or len(held) < 2 or not training.rose:
        return None
    if held.last <= held.first:
        return Check(
            name,
            "warning",
            f"Correct answers rose in training ({shown(training.before, 'share')} to {shown(training.after, 'share')}) "
            f"but not on held-out tasks ({shown(held.first, 'share')} to {shown(held.last, 'share')}).",
        )
    return Check(name, "fine", "Correct answers rose on held-out tasks as well as in training.")


def _memorised(run: Run) -> Check | None:
    name, held = "Not memorised", run.curve("eval/loss")
    if held is None or len(held) < 2:
        return None
    best = min(held.values)
    if held.last > 1.05 * best:
        at = held.steps[held.values.index(best)]
        return Check(
            name,
            "warning",
            f"The held-out loss was lowest at step {at} ({shown(best)}) and has risen to {shown(held.last)}: since "
            "then the model memorises.",
        )
    return Check(name, "fine", "The held-out loss is at or near its lowest.")


def _cut_short(run: Run) -> Check | None:
    name, curve = "Answers end", run.curve("completions/clipped_ratio")
    if curve is None:
        return None
    late = _mean(curve.values[-ends(len(curve)) :])
    sentence = f"In the last quarter of the steps {shown(late, 'share')} of the answers reached the token limit"
    if late > 0.5:
        return Check(name, "warning", f"{sentence}: most are cut off, so their quality is unknown.")
    return Check(name, "fine", f"{sentence}.")


def _harness(run: Run) -> Check | None:
    name = "The judge works"
    curve = run.curve("judge/harness_failed") or run.curve("eval/judge/harness_failed")
    if curve is None:
        return None
    share = _mean(curve.values)
    if share > 0.02:
        return Check(
            name,
            "warning",
            f"The judge itself failed on {shown(share, 'share')} of the answers. They have no reward, and the other "
            "answers may differ from them.",
        )
    return Check(name, "fine", f"The judge itself failed on {shown(share, 'share')} of the answers.")


def _timed(run: Run) -> Check | None:
    if run.curve("judge/correct") is None or not any(run.curve("judge/correct").values):  # type: ignore[union-attr]
        return None
    if run.curve("judge/speedup_geomean") is None:
        return Check(
            "Speed was measured",
            "unknown",
            "No correct answer was timed (kernels ran in the interpreter, or timing was off), so the speed is unknown.",
        )
    return Check("Speed was measured", "fine", "Correct answers were timed against the reference.")


def _skipped(run: Run) -> Check | None:
    curve = run.curve("skipped_updates")
    if curve is None:
        return None
    skipped = sum(value > 0 for value in curve.values)
    name, sentence = "Updates happen", f"{skipped} of {len(curve)} steps had a skipped update"
    if skipped > 0.05 * len(curve):
        return Check(name, "warning", f"{sentence}, because it was not finite or no answer could be scored.")
    return Check(name, "fine", f"{sentence}.")


def _readable(run: Run) -> Check | None:
    if not run.unreadable:
        return None
    lines = "1 line" if run.unreadable == 1 else f"{run.unreadable} lines"
    return Check("Files are complete", "warning", f"{lines} of the run's files could not be read and are left out.")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)

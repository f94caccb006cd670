"""What the numbers of a run say in plain sentences, and whether to believe them.

Thresholds are rules of thumb, chosen so that healthy runs of ours raise none; every sentence names its numbers, so that
a reader can disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_coder.report.charts import shown
from kernel_coder.report.folder import Curve, Run

MIN_STEPS = 10
"""Fewer steps say nothing about a trend."""
FEW_TASKS = 50
"""Held-out tasks below which a share is known to no better than about 14 points either way."""
SOLVED = "eval/correct_by_turn/"
"""What the shares of conversations with a correct answer within their first turns begin with."""
SURE = 0.02
"""Nats a token at which a model nearly always says the same."""
CLEARLY = 3.0
"""Standard errors by which the two ends of a noisy curve must differ to be called different."""

State = Literal["fine", "warning", "unknown"]


@dataclass(frozen=True)
class Check:
    """A reason to believe the run or not."""

    name: str
    state: State
    sentence: str


@dataclass(frozen=True)
class Change:
    """A curve's mean over its first and its last quarter, and how many standard errors they are apart."""

    before: float
    after: float
    errors: float
    half_at: int  # the step by which half of the change had happened

    @property
    def rose(self) -> bool:
        return self.errors > CLEARLY

    @property
    def fell(self) -> bool:
        return self.errors < -CLEARLY


@dataclass(frozen=True)
class HeldOut:
    """A held-out number before and after, with intervals where it is a share."""

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
        """None where there are none, or only one value."""
        if self.first_interval is None or self.last_interval is None or self.first_step == self.last_step:
            return None
        return self.last_interval[0] > self.first_interval[1] or self.last_interval[1] < self.first_interval[0]

    def text(self, value: float) -> str:
        return shown(value, "share" if self.is_share else "number")

    def interval(self, bounds: tuple[float, float] | None) -> str:
        return "" if bounds is None else f"{self.text(bounds[0])} to {self.text(bounds[1])}"


def share_interval(share: float, of: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927).

    >>> [round(bound, 3) for bound in share_interval(0.0, 16)], [round(bound, 3) for bound in share_interval(0.5, 100)]
    ([0.0, 0.194], [0.404, 0.596])
    """
    z, share = 1.959964, min(max(share, 0.0), 1.0)
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return (max(0.0, middle - reach) if share > 0 else 0.0), (min(1.0, middle + reach) if share < 1 else 1.0)


def held_out_tasks(run: Run) -> int | None:
    """Held-out tasks that were answered; None if there are none, or the run does not say how many."""
    count = (run.summary or {}).get("held_out_tasks") or run.setting("eval", "num_tasks")
    if run.kind == "supervised" and "eval/format" in run.curves:
        count = run.setting("eval", "num_answered")
    return count if isinstance(count, int) and count > 0 else None


def held_out(run: Run) -> list[HeldOut]:
    """Held-out numbers before and after, the most telling first: of conversations whether they are solved at all."""
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
    """How a noisy curve has changed; None if it is too short to say."""
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
    """A quarter of them, at least one: what is taken as the beginning and the end of a curve."""
    return max(1, points // 4)


def _after(curve: Curve | None, step: int) -> Curve | None:
    """What of a curve was measured later."""
    if curve is None:
        return None
    first = sum(each <= step for each in curve.steps)
    return Curve(curve.name, curve.steps[first:], curve.values[first:])


def _half_way(curve: Curve, before: float, after: float, reach: int) -> int:
    """The step at which a moving mean over a quarter of the curve passes the middle, for good."""
    middle, rising = (before + after) / 2, after > before
    at = curve.steps[-1]
    for place in range(len(curve) - reach, -1, -1):
        mean = _mean(curve.values[place : place + reach])
        if (mean < middle) == rising:
            break
        at = curve.steps[place + reach // 2]
    return at


def stage_changes(run: Run) -> list[int]:
    """Steps after which something else was rewarded."""
    curve = run.curve("stage")
    if curve is None:
        return []
    pairs = zip(curve.steps, curve.values, (0.0, *curve.values[:-1]), strict=True)
    return [step for step, value, before in pairs if value != before]


def story(run: Run) -> list[str]:
    """What it learned, and when."""
    if not run.metrics or not run.curves:
        return ["No step is finished yet, so there is nothing to say."]
    sentences = []
    correct = [curve for name in ("judge/correct", "eval/judge/correct") if (curve := run.curve(name)) is not None]
    if correct and not any(value for curve in correct for value in curve.values):
        sentences.append(
            "No answer was ever correct: whatever the curves say, the model has not learned to write kernels that work."
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
        sentences.append(f"What is rewarded changed after step {after}: rewards before and after do not compare.")
    if not sentences:
        sentences.append(
            f"After {run.last_step} steps there are too few values to say whether anything changed: a trend needs at "
            f"least {MIN_STEPS} steps, or held-out values at two of them."
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
        " The intervals are apart, so this is more than luck."
        if one.intervals_apart
        else " The intervals overlap, so this may be luck."
    )


def _about_change(label: str, found: Change, unit: str) -> str:
    before, after = shown(found.before, unit), shown(found.after, unit)  # type: ignore[arg-type]
    if found.rose or found.fell:
        verb = "rose" if found.rose else "fell"
        return f"{label} {verb} from {before} to {after}; half of that had happened by step {found.half_at}."
    return f"{label} did not clearly change: {before} in the first quarter of the steps, {after} in the last."


# ---- whether to believe it


def checks(run: Run) -> list[Check]:
    """Every check that applies to the run, warnings first."""
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
        found += [_answers_are_run(run), _by_heart(run)]
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
            "Nothing was measured on held-out tasks, so learning cannot be told from learning by heart.",
        )
    if tasks is None:
        return Check(name, "unknown", "The run does not say how many held-out tasks there are.")
    if tasks < FEW_TASKS:
        reach = 100 * 0.98 / math.sqrt(tasks)
        return Check(
            name,
            "warning",
            f"There are only {tasks} held-out tasks: a share near one half is known to within about {reach:.0f} points "
            "either way, so small differences mean nothing.",
        )
    return Check(name, "fine", f"{tasks} held-out tasks.")


def _held_out_gain(run: Run) -> Check | None:
    name = "More than luck on held-out tasks"
    # Of conversations the solved ones, which come first.
    one = next((one for one in held_out(run) if one.name.startswith((SOLVED, "eval/judge/correct"))), None)
    if one is None:
        return None
    if one.first_step == one.last_step:
        return Check(name, "unknown", "Held-out answers were judged only once, so there is no before and after.")
    if one.last > one.first and one.intervals_apart:
        return Check(name, "fine", f"The intervals before and after are apart: held-out {one.label}.")
    if one.first == one.last:
        return Check(name, "warning", f"The share is what it was, {one.text(one.last)}: held-out {one.label}.")
    told = "Solved held-out conversations" if one.name.startswith(SOLVED) else "Correct held-out answers"
    return Check(
        name,
        "warning",
        f"{told} went from {one.text(one.first)} to {one.text(one.last)}, and that is "
        + ("less." if one.intervals_apart else "within what chance can do: the intervals overlap."),
    )


def _is_judged(run: Run) -> Check:
    name = "Answers are run"
    if run.curve("judge/correct") is None:
        return Check(
            name,
            "warning",
            "No judge ran the answers. The reward says only what the reward functions measure, such as form or "
            "likeness to a known solution, and not whether any kernel works.",
        )
    return Check(name, "fine", "A judge ran the answers and compared their results with the reference.")


def _answers_are_run(run: Run) -> Check:
    name = "Answers are run"
    if run.curve("eval/judge/correct") is None:
        said = "No judge ran an answer: a low loss says that the model can imitate, and not that its kernels work."
        return Check(name, "unknown", said)
    return Check(name, "fine", "A judge ran the held-out answers and compared their results with the reference.")


def _reward_and_correct(run: Run) -> Check | None:
    name = "Reward means correct answers"
    curves = run.curve("reward"), run.curve("judge/correct")
    since = ""
    if changes := stage_changes(run):
        curves = tuple(_after(curve, changes[-1]) for curve in curves)  # type: ignore[assignment]
        since = f" since what is rewarded changed after step {changes[-1]}"
    reward, correct = map(change, curves)
    if reward is None or correct is None:
        return Check(name, "unknown", f"There are too few steps{since}.") if since else None
    if reward.rose and not correct.rose:
        return Check(
            name,
            "warning",
            f"The reward rose{since} from {shown(reward.before)} to {shown(reward.after)} while the share of correct "
            f"answers did not ({shown(correct.before, 'share')} to {shown(correct.after, 'share')}): it is paid "
            "for something else. Look at the parts of the reward.",
        )
    return Check(name, "fine", f"The reward did not rise{since} without the share of correct answers.")


def _entropy(run: Run) -> Check | None:
    name, found = "Still exploring", change(run.curve("entropy"))
    if found is None:
        return None
    moved = f"entropy went from {shown(found.before)} to {shown(found.after)} nats a token"
    if found.after < 0.2 * found.before or found.after < SURE:
        sure = found.before < SURE
        said = f"The model was sure from the start, its {moved}" if sure else f"The model's {moved}"
        has = "it has few different answers" if sure else "it has collapsed on a few answers"
        return Check(name, "warning", f"{said}: {has} and will hardly find better ones.")
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
            "tries to be paid without doing the work. The table of rejections says how.",
        )
    return Check(
        name, "fine", f"The judge rejected {shown(late, 'share')} of the answers in the last quarter of the steps."
    )


def _generalises(run: Run) -> Check | None:
    name = "Not learned by heart"
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


def _by_heart(run: Run) -> Check | None:
    name, held = "Not learned by heart", run.curve("eval/loss")
    if held is None or len(held) < 2:
        return None
    best = min(held.values)
    if held.last > 1.05 * best:
        at = held.steps[held.values.index(best)]
        return Check(
            name,
            "warning",
            f"The held-out loss was lowest at step {at} ({shown(best)}) and has risen to {shown(held.last)}: since "
            "then the model learns by heart.",
        )
    return Check(name, "fine", "The held-out loss is at or near its lowest.")


def _cut_short(run: Run) -> Check | None:
    name, curve = "Answers end", run.curve("completions/clipped_ratio")
    if curve is None:
        return None
    late = _mean(curve.values[-ends(len(curve)) :])
    sentence = (
        f"In the last quarter of the steps {shown(late, 'share')} of the answers reached the limit of their length"
    )
    if late > 0.5:
        return Check(name, "warning", f"{sentence}: most are cut short, and what they could do was not seen.")
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
            f"The judge itself failed on {shown(share, 'share')} of the answers. They have no reward, and what is left "
            "may be another kind of answers than those that are missing.",
        )
    return Check(name, "fine", f"The judge itself failed on {shown(share, 'share')} of the answers.")


def _timed(run: Run) -> Check | None:
    if run.curve("judge/correct") is None or not any(run.curve("judge/correct").values):  # type: ignore[union-attr]
        return None
    if run.curve("judge/speedup_geomean") is None:
        return Check(
            "Speed was measured",
            "unknown",
            "No correct answer was timed (kernels were run by an interpreter, or timing was off), so nothing is known "
            "about speed.",
        )
    return Check("Speed was measured", "fine", "Correct answers were timed against the reference.")


def _skipped(run: Run) -> Check | None:
    curve = run.curve("skipped_updates")
    if curve is None:
        return None
    skipped = sum(value > 0 for value in curve.values)
    name, sentence = "Updates happen", f"{skipped} of {len(curve)} steps had an update that was refused"
    if skipped > 0.05 * len(curve):
        return Check(name, "warning", f"{sentence}, because it was not finite or nothing could be scored.")
    return Check(name, "fine", f"{sentence}.")


def _readable(run: Run) -> Check | None:
    if not run.unreadable:
        return None
    lines = "1 line" if run.unreadable == 1 else f"{run.unreadable} lines"
    return Check("Files are whole", "warning", f"{lines} of the run's files could not be read and are left out.")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)

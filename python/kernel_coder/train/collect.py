"""Groups to learn from: tasks are answered, and those whose answers are all worth the same make room for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_coder.judge import Verdict
from kernel_coder.rewards import RewardTable
from kernel_coder.rewards.errors import Failure
from kernel_coder.rollout import Rollout
from kernel_coder.train.setup import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Prompts with a group of answers each, neighbours of each other, and what is thought of them."""

    prompts: tuple[Prompt, ...]
    rollouts: tuple[Rollout, ...]
    verdicts: tuple[Verdict, ...] | None
    table: RewardTable

    @property
    def group(self) -> int:
        return len(self.rollouts) // len(self.prompts)

    def successes(self, from_reward: float) -> list[list[bool]]:
        """Of every group which answers are correct: as the judge says, or by their reward where nothing judges.

        Answers that could not be scored are left out.
        """
        found: list[bool | None]
        if self.verdicts is None:
            found = [None if total is None else total >= from_reward for total in self.table.total]
        else:
            found = [verdict.correct if verdict.is_scored else None for verdict in self.verdicts]
        return [[one for one in found[i : i + self.group] if one is not None] for i in self._starts()]

    def flat(self) -> list[int]:
        """The groups whose scored answers all have the same reward: they carry no gradient."""
        totals = self.table.total
        rows = [[total for total in totals[i : i + self.group] if total is not None] for i in self._starts()]
        return [place for place, row in enumerate(rows) if all(total == row[0] for total in row)]

    def _starts(self) -> range:
        return range(0, len(self.rollouts), self.group)


def with_groups(base: Answers, places: Sequence[int], other: Answers, chosen: Sequence[int]) -> Answers:
    """``base`` with its groups at ``places`` replaced by the ``chosen`` ones of ``other``."""
    source = {place: (other, pick) for place, pick in zip(places, chosen, strict=True)}
    parts = [source.get(place, (base, place)) for place in range(len(base.prompts))]
    rows = [(answers, pick * base.group + k) for answers, pick in parts for k in range(base.group)]
    labels = base.table.parts
    return Answers(
        prompts=tuple(answers.prompts[pick] for answers, pick in parts),
        rollouts=tuple(answers.rollouts[row] for answers, row in rows),
        verdicts=None
        if base.verdicts is None
        else tuple(answers.verdicts[row] for answers, row in rows if answers.verdicts is not None),
        table=RewardTable(
            total=[answers.table.total[row] for answers, row in rows],
            parts={label: [answers.table.parts[label][row] for answers, row in rows] for label in labels},
            errors={label: _moved(label, rows) for label in labels},
            weights=base.table.weights,
        ),
    )


def _moved(label: str, rows: Sequence[tuple[Answers, int]]) -> list[Failure]:
    """The failures of a reward, at the places where their answers now are."""
    found = []
    for position, (answers, row) in enumerate(rows):
        found += [
            Failure(position=position, reason=failure.reason)
            for failure in answers.table.errors[label]
            if failure.position == row
        ]
    return found


def with_spread(
    answers: Answers, again: Callable[[int, int, set[str]], Answers], rounds: int
) -> tuple[Answers, list[Answers], dict[str, float]]:
    """Dynamic sampling (DAPO): groups without spread are replaced by those of further tasks that have one.

    Args:
        answers: of the step's own tasks.
        again: answers to so many further tasks, from the number of the round and the tasks tried so far.
        rounds: how often at most.

    Returns:
        The answers to learn from, where a group without spread is left if none better came; all answers that were
        sampled, for whoever measures success; and the counts for the log.
    """
    sampled = [answers]
    tried = {prompt.task.id for prompt in answers.prompts}
    first = len(answers.flat())
    done = 0
    while done < rounds and (flat := answers.flat()):
        done += 1
        further = again(len(flat), done, tried)
        tried |= {prompt.task.id for prompt in further.prompts}
        sampled.append(further)
        useless = set(further.flat())
        useful = [place for place in range(len(further.prompts)) if place not in useless]
        answers = with_groups(answers, flat[: len(useful)], further, useful)
    left = len(answers.flat())
    counts = {"resampling/rounds": float(done), "resampling/replaced_groups": float(first - left)}
    return answers, sampled, counts if rounds else {}

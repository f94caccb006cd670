"""Groups to learn from: tasks are answered, and those whose answers are all worth the same make room for others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_coder.judge import Verdict
from kernel_coder.rewards import RewardTable
from kernel_coder.rewards.errors import Failure
from kernel_coder.rollout import Rollout
from kernel_coder.train.scoring import bounds_of, verdicts_of
from kernel_coder.train.setup import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Prompts with a group of rollouts each, neighbours of each other, and what is thought of the answers.

    ``table`` has a row for every turn, one rollout after another.
    """

    prompts: tuple[Prompt, ...]
    rollouts: tuple[Rollout, ...]
    table: RewardTable

    @property
    def group(self) -> int:
        return len(self.rollouts) // len(self.prompts)

    @property
    def verdicts(self) -> list[Verdict] | None:
        return verdicts_of(self.rollouts)

    @property
    def bounds(self) -> list[int]:
        return bounds_of(self.rollouts)

    def successes(self, from_reward: float) -> list[list[bool]]:
        """Of every group which rollouts came to a correct answer: as the judge says, or by its reward where nothing
        judges.

        Answers that could not be scored are left out, and rollouts without any other.
        """
        found: list[bool | None]
        verdicts = self.verdicts
        if verdicts is None:
            found = [None if total is None else total >= from_reward for total in self.table.total]
        else:
            found = [verdict.correct if verdict.is_scored else None for verdict in verdicts]
        rollouts = [[one for one in found[begin:end] if one is not None] for begin, end in self._spans()]
        return [[any(one) for one in rollouts[i : i + self.group] if one] for i in self._starts()]

    def flat(self) -> list[int]:
        """The groups whose rollouts all earned the same, turn by turn: they carry no gradient.

        Rollouts with an answer that could not be scored are left out.
        """
        earned = [tuple(self.table.total[begin:end]) for begin, end in self._spans()]
        groups = [[one for one in earned[i : i + self.group] if None not in one] for i in self._starts()]
        return [place for place, row in enumerate(groups) if all(one == row[0] for one in row)]

    def _starts(self) -> range:
        return range(0, len(self.rollouts), self.group)

    def _spans(self) -> list[tuple[int, int]]:
        bounds = self.bounds
        return list(itertools.pairwise(bounds))


def with_groups(base: Answers, places: Sequence[int], other: Answers, chosen: Sequence[int]) -> Answers:
    """``base`` with its groups at ``places`` replaced by the ``chosen`` ones of ``other``."""
    source = {place: (other, pick) for place, pick in zip(places, chosen, strict=True)}
    parts = [source.get(place, (base, place)) for place in range(len(base.prompts))]
    rollouts = [(answers, pick * base.group + k) for answers, pick in parts for k in range(base.group)]
    rows = [(answers, row) for answers, r in rollouts for row in range(answers.bounds[r], answers.bounds[r + 1])]
    labels = base.table.parts
    return Answers(
        prompts=tuple(answers.prompts[pick] for answers, pick in parts),
        rollouts=tuple(answers.rollouts[r] for answers, r in rollouts),
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

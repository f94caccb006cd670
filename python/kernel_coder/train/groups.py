"""Groups of answers, and dynamic sampling: groups whose answers all have the same reward are replaced by others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_coder.judge import Verdict
from kernel_coder.rewards import RewardTable
from kernel_coder.rewards.errors import Failure
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.train.prompts import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Prompts, a group of rollouts for each, and the rewards of all answers.

    The rollouts of a prompt are next to each other. ``table`` has a row for every turn, one rollout after another.
    """

    prompts: tuple[Prompt, ...]
    rollouts: tuple[Rollout, ...]
    table: RewardTable

    @property
    def group(self) -> int:
        """Rollouts of each prompt."""
        return len(self.rollouts) // len(self.prompts)

    @property
    def turns(self) -> list[Turn]:
        """The turns of all rollouts, one rollout after another."""
        return [turn for rollout in self.rollouts for turn in rollout.turns]

    @property
    def verdicts(self) -> list[Verdict] | None:
        """See :func:`verdicts_of`."""
        return verdicts_of(self.rollouts)

    @property
    def bounds(self) -> list[int]:
        """See :func:`bounds_of`."""
        return bounds_of(self.rollouts)

    def successes(self, from_reward: float) -> list[list[bool]]:
        """Return for each group whether each rollout has a correct answer.

        The judge decides what is correct; without a judge an answer counts as correct if its reward is at least
        ``from_reward``. Answers that could not be scored are left out, and so are rollouts without any scored answer.
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
        """Return the groups whose rollouts all earned the same rewards, turn by turn, and so carry no gradient.

        Rollouts with an answer that could not be scored are left out.
        """
        earned = [tuple(self.table.total[begin:end]) for begin, end in self._spans()]
        groups = [[one for one in earned[i : i + self.group] if None not in one] for i in self._starts()]
        return [place for place, row in enumerate(groups) if all(one == row[0] for one in row)]

    def _starts(self) -> range:
        return range(0, len(self.rollouts), self.group)

    def _spans(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise(self.bounds))


def verdicts_of(rollouts: Sequence[Rollout]) -> list[Verdict] | None:
    """Return the verdicts on all turns, one rollout after another; None if there is no judge."""
    found = [verdict for rollout in rollouts for verdict in rollout.verdicts]
    return None if not found or any(verdict is None for verdict in found) else found


def bounds_of(rollouts: Sequence[Rollout]) -> list[int]:
    """Return the index of each rollout's first turn among all turns, and the number of turns."""
    return [0, *itertools.accumulate(len(rollout.turns) for rollout in rollouts)]


def with_groups(base: Answers, places: Sequence[int], other: Answers, chosen: Sequence[int]) -> Answers:
    """Return ``base`` with the groups at ``places`` replaced by the groups ``chosen`` from ``other``."""
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
    """Return the failures of a reward on these rows, with their new positions."""
    found = []
    for position, (answers, row) in enumerate(rows):
        found += [
            Failure(position=position, reason=failure.reason)
            for failure in answers.table.errors[label]
            if failure.position == row
        ]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The answers of a step.

    Attributes:
        answers: the groups to learn from. A group without spread is among them only if no better one was found.
        rounds: all sampled answers: first those to the step's own tasks, then those of each further round.
        replaced: number of groups that were replaced.
    """

    answers: Answers
    rounds: tuple[Answers, ...]
    replaced: int

    @classmethod
    def at_once(cls, answers: Answers) -> Sampled:
        """Return the answers of a step without further rounds."""
        return cls(answers, (answers,), 0)

    @property
    def num_tasks(self) -> int:
        """Tasks that were drawn, in all rounds together."""
        return sum(len(answers.prompts) for answers in self.rounds)


def sample_with_spread(answer: Callable[[int, Sequence[Answers]], Answers], count: int, max_rounds: int) -> Sampled:
    """Answers ``count`` tasks, and replaces groups without spread by groups of further tasks (DAPO's dynamic sampling).

    Args:
        answer: draws and answers a number of tasks, given the earlier rounds.
        count: tasks of a step.
        max_rounds: number of further rounds at most.
    """
    answers = answer(count, ())
    rounds, first = [answers], len(answers.flat())
    while len(rounds) <= max_rounds and (flat := answers.flat()):
        further = answer(len(flat), tuple(rounds))
        rounds.append(further)
        useless = set(further.flat())
        useful = [place for place in range(len(further.prompts)) if place not in useless]
        answers = with_groups(answers, flat[: len(useful)], further, useful)
    return Sampled(answers, tuple(rounds), first - len(answers.flat()))

"""Several rewards, weighted and added up."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, SupportsFloat

from kernel_coder.rewards.errors import Failure, RewardError
from kernel_coder.rewards.registry import Reward, load_reward
from kernel_coder.rewards.schedule import Schedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """One term of a :class:`RewardSet`.

    Attributes:
        name: what :func:`load_reward` takes.
        weight: factor of this term; 0 only reports it, a negative one makes it a penalty.
        params: of the reward function.
        schedule: a further factor by step; see :class:`Schedule`.
        required: a completion that this reward cannot judge (None) has no total.
        label: the term's name in tables and logs; by default the name, of ``module:function`` the function.
    """

    name: str
    weight: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | Mapping[str, Any] | str | None = None
    required: bool = False
    label: str | None = None

    @classmethod
    def parse(cls, value: RewardPart | Mapping[str, Any] | str | Any) -> RewardPart:
        """A part from its name, its fields in a mapping, or any object with such attributes."""
        if isinstance(value, RewardPart):
            return value
        if isinstance(value, str):
            return cls(name=value)
        names = [one.name for one in fields(cls)]
        if not isinstance(value, Mapping):
            value = {name: getattr(value, name) for name in names if hasattr(value, name)}
        for key in value:
            if key not in names:
                raise RewardError(f"a reward has no field {key}; it has {', '.join(names)}")
        if "name" not in value:
            raise RewardError(f"a reward needs a name; got {dict(value)}")
        return cls(**value)


@dataclass(frozen=True, slots=True)
class RewardTable:
    """The rewards of a batch.

    Attributes:
        total: for each completion, the weighted sum; None for one that could not be scored, which then takes part
            neither in the baseline nor in the loss.
        parts: the same for each term, unweighted.
        errors: for each term, the completions that it failed on, with the reason.
        weights: of the terms at this step.
    """

    total: list[float | None]
    parts: dict[str, list[float | None]]
    errors: dict[str, list[Failure]]
    weights: dict[str, float]

    @property
    def num_errors(self) -> int:
        """How often a term failed on a completion."""
        return sum(map(len, self.errors.values()))


class RewardSet:
    """Weighted rewards.

    The total of a completion is the sum of ``weight * schedule(step) * reward`` over the terms. A term that returns
    None does not apply to that completion and is left out of the sum, as in TRL; the total is None if no term of
    nonzero weight applies. ``required`` terms, or all with ``strict``, make it None as soon as theirs is.

    A failure is another thing than None: where a reward function raises, or returns a NaN, an infinity or something
    that is no number, the completion was not judged, and leaving the term out would count it as 0. Its total is None if
    the term has a nonzero weight; the reason is logged and kept in ``errors``. A function that raises fails for the
    whole batch that it was given.

    ``async`` functions of a set run concurrently.

    Args:
        parts: :class:`RewardPart` objects, their fields in mappings, or plain names.
        strict: treat every term as required.

    Raises:
        RewardError: from any of the parts, no parts, two parts of one label, or all weights 0; when called, a missing
            column, or a number of rewards that is not the number of completions.

    >>> rewards = RewardSet([{"name": "format", "weight": 0.5}, {"name": "similarity", "weight": 2.0}])
    >>> answer = "<thinking>why</thinking><answer>```python\\nx = 1\\n```</answer>"
    >>> table = rewards(["?", "?"], [answer, "no code"], step=0, solution=["x = 1", "x = 1"])
    >>> table.total, table.parts["format"]
    ([2.5, 0.0], [1.0, 0.0])
    """

    def __init__(self, parts: Iterable[RewardPart | Mapping[str, Any] | str | Any], *, strict: bool = False) -> None:
        self.parts = tuple(RewardPart.parse(part) for part in parts)
        self.strict = strict
        if not self.parts:
            raise RewardError("rewards is empty; name at least one")
        self._rewards: dict[str, Reward] = {}
        self._schedules: dict[str, Schedule] = {}
        for part in self.parts:
            label = part.label or part.name.rpartition(":")[2]
            if label in self._rewards:
                raise RewardError(f"two rewards are called {label}; give one of them a label")
            if not isinstance(part.weight, (int, float)) or not math.isfinite(part.weight):
                raise RewardError(f"the weight of reward {label} must be a finite number; got {part.weight!r}")
            self._rewards[label] = load_reward(part.name, part.params)
            try:
                self._schedules[label] = Schedule.parse(part.schedule)
            except RewardError as error:
                raise RewardError(f"reward {label}: {error}") from error
        if not any(part.weight for part in self.parts):
            raise RewardError("every reward has weight 0; nothing could be learned")

    @property
    def labels(self) -> tuple[str, ...]:
        """The terms' names, in order."""
        return tuple(self._rewards)

    def needing(self, column: str, *, or_taking: bool = False) -> list[str]:
        """The terms that cannot do without a column; with ``or_taking`` also those that name it and can.

        >>> RewardSet(["format", "correct"]).needing("verdict")
        ['correct']
        """
        found = []
        for label, reward in self._rewards.items():
            parameter = inspect.signature(reward.function).parameters.get(column)
            if parameter is not None and (or_taking or parameter.default is parameter.empty):
                found.append(label)
        return found

    def weights(self, step: int) -> dict[str, float]:
        """The weights at this step."""
        return {
            label: part.weight * self._schedules[label](step)
            for label, part in zip(self._rewards, self.parts, strict=True)
        }

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        step: int = 0,
        factors: Mapping[str, float] | None = None,
        **columns: Any,
    ) -> RewardTable:
        """Score a batch; ``columns`` hold one value for each completion.

        ``factors`` multiply the weights by label for this call; a term that they do not name is only reported.
        """
        count = len(completions)
        for name, column in {"prompts": prompts, **columns}.items():
            if isinstance(column, (list, tuple)) and len(column) != count:
                raise RewardError(f"the column {name} has {len(column)} values for {count} completions")
        columns = {**columns, "step": step}
        parts: dict[str, list[float | None]] = {}
        errors: dict[str, list[Failure]] = {}
        outcomes = _call_all(self._rewards, prompts, completions, columns)
        for label, outcome in outcomes.items():
            parts[label], errors[label] = _scores(label, outcome, count)
            if errors[label]:
                first = errors[label][0]
                logger.warning(
                    "reward %s could not score %d of %d completions; the first, at position %d: %s",
                    *(label, len(errors[label]), count, first.position, first.reason),
                )
        weights = self.weights(step)
        if factors is not None:
            weights = {label: weight * factors.get(label, 0.0) for label, weight in weights.items()}
        return RewardTable(self._totals(parts, errors, weights, count), parts, errors, weights)

    def totals(self, table: RewardTable, factors: Mapping[str, float]) -> list[float | None]:
        """The totals of a table under other weights: its own times ``factors``; a term not named counts nothing.

        >>> rewards = RewardSet(["format", {"name": "similarity", "weight": 2.0}])
        >>> answer = "<thinking>why</thinking><answer>```python\\nx = 1\\n```</answer>"
        >>> table = rewards(["?"], [answer], solution=["x = 1"])
        >>> table.total, rewards.totals(table, {"similarity": 1.0})
        ([3.0], [2.0])
        """
        weights = {label: weight * factors.get(label, 0.0) for label, weight in table.weights.items()}
        return self._totals(table.parts, table.errors, weights, len(table.total))

    def _totals(
        self,
        parts: Mapping[str, list[float | None]],
        errors: Mapping[str, list[Failure]],
        weights: Mapping[str, float],
        count: int,
    ) -> list[float | None]:
        counted = [label for label in self._rewards if weights[label] != 0.0]
        required = {
            label for label, part in zip(self._rewards, self.parts, strict=True) if self.strict or part.required
        }
        unscored = {failure.position for label in counted for failure in errors[label]}
        totals: list[float | None] = []
        for index in range(count):
            values = {label: parts[label][index] for label in counted}
            terms = [weights[label] * value for label, value in values.items() if value is not None]
            missing = any(value is None and label in required for label, value in values.items())
            # Terms whose weights have all decayed to 0 add up to 0; terms that all do not apply, to nothing.
            if index in unscored or missing or (counted and not terms):
                totals.append(None)
            else:
                total = math.fsum(terms) if all(map(math.isfinite, terms)) else math.inf
                totals.append(total if math.isfinite(total) else None)
        return totals


def _call_all(
    rewards: Mapping[str, Reward], prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """For each reward what it returned, or the exception that it raised. Plain functions run first, in order."""
    outcomes: dict[str, Any] = {}
    pending: dict[str, Awaitable[Any]] = {}
    try:
        for label, reward in rewards.items():
            try:
                outcome = reward(prompts, completions, **columns)
            except RewardError:
                raise
            except Exception as error:  # a harness failure, whatever it is
                outcome = error
            outcomes[label] = outcome
            if inspect.isawaitable(outcome):
                pending[label] = outcome
    except RewardError:
        for awaitable in pending.values():
            if inspect.iscoroutine(awaitable):
                awaitable.close()
        raise
    if pending:
        outcomes.update(zip(pending, _gathered(list(pending.values())), strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, RewardError):
            raise outcome
    return outcomes


def _gathered(awaitables: list[Awaitable[Any]]) -> list[Any]:
    """Results or exceptions. In a notebook a loop runs in this thread already; then another thread gets its own."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(gather())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(gather())).result()


def _scores(label: str, outcome: Any, count: int) -> tuple[list[float | None], list[Failure]]:
    """Finite numbers and None, and what stood in the place of the other values."""
    if isinstance(outcome, BaseException):
        reason = f"{type(outcome).__name__}: {outcome}"
        return [None] * count, [Failure(index, reason) for index in range(count)]
    if hasattr(outcome, "tolist"):  # arrays and tensors
        outcome = outcome.tolist()
    if not isinstance(outcome, (list, tuple)):
        raise RewardError(
            f"reward {label} must return a list with a number or None for each completion; got {type(outcome).__name__}"
        )
    if len(outcome) != count:
        raise RewardError(f"reward {label} returned {len(outcome)} values for {count} completions")
    scores: list[float | None] = []
    failures: list[Failure] = []
    for index, value in enumerate(outcome):
        score = None if value is None else _finite(value)
        if score is None and value is not None:
            failures.append(Failure(index, f"{value!r} is not a finite number"))
        scores.append(score)
    return scores, failures


def _finite(value: object) -> float | None:
    if isinstance(value, (str, bytes)) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # a tensor of two, an integer of a thousand digits
        return None
    return number if math.isfinite(number) else None

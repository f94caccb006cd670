"""Weighted sums of rewards."""

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
        name: name of the reward, as for :func:`load_reward`.
        weight: factor of this term. 0: the term is only reported. Negative: the term is a penalty.
        params: parameters of the reward function.
        schedule: a factor that depends on the step; see :class:`Schedule`.
        required: if this term is None, the total is None too.
        label: the term's name in tables and logs; default: the name, or the function's name in ``module:function``.
    """

    name: str
    weight: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | Mapping[str, Any] | str | None = None
    required: bool = False
    label: str | None = None

    @classmethod
    def parse(cls, value: RewardPart | Mapping[str, Any] | str | Any) -> RewardPart:
        """Makes a part from its name, a mapping of its fields, or an object with these attributes."""
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
        total: the weighted sum for each completion. None: the completion could not be scored; the training then uses it
            neither in the baseline nor in the loss.
        parts: the unweighted rewards of each term, by label.
        errors: for each label, the completions on which this term failed.
        weights: the weights of the terms at this step, by label.
    """

    total: list[float | None]
    parts: dict[str, list[float | None]]
    errors: dict[str, list[Failure]]
    weights: dict[str, float]

    @property
    def num_errors(self) -> int:
        """The number of failures of all terms."""
        return sum(map(len, self.errors.values()))


class RewardSet:
    """A weighted sum of rewards.

    The total of a completion is the sum of ``weight * schedule(step) * reward`` over the terms. A term that is None
    does not apply to the completion and is left out, as in TRL. The total is None if no term with nonzero weight
    applies, or if a ``required`` term is None (with ``strict``: if any term is None).

    A failure differs from None. If a reward function raises, or returns NaN, infinity or no number, the completion was
    not scored; leaving the term out would treat it as 0. So the total is None if the term has a nonzero weight. The
    reason is logged and kept in ``errors``. An exception counts as a failure for the whole batch.

    ``async`` functions run concurrently.

    Args:
        parts: :class:`RewardPart` objects, mappings of their fields, or names.
        strict: treat every term as required.

    Raises:
        RewardError: a part is wrong, there is no part, two parts have the same label, or all weights are 0. In a call:
            a column is missing, or a function returns the wrong number of rewards.

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
            raise RewardError("rewards is empty; name at least one reward")
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
            raise RewardError("every reward has weight 0; at least one must have another weight")

    @property
    def labels(self) -> tuple[str, ...]:
        """The terms' labels, in order."""
        return tuple(self._rewards)

    def needing(self, column: str, *, or_taking: bool = False) -> list[str]:
        """Return the terms that require a column; with ``or_taking`` also those for which it is optional.

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
        """Return the terms' weights at this step, by label."""
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
        """Scores a batch; ``columns`` hold one value for each completion.

        ``factors`` multiply the weights in this call, by label. A term without a factor is only reported.
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
        """Return the totals of a table with its weights multiplied by ``factors``; terms without a factor are left out.

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
            # If all weights have decayed to 0, the total is 0. If there are weights but no term applies, it is None.
            if index in unscored or missing or (counted and not terms):
                totals.append(None)
            else:
                total = math.fsum(terms) if all(map(math.isfinite, terms)) else math.inf
                totals.append(total if math.isfinite(total) else None)
        return totals


def _call_all(
    rewards: Mapping[str, Reward], prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result of each reward, or the exception that it raised. Plain functions run first, in order."""
    outcomes: dict[str, Any] = {}
    pending: dict[str, Awaitable[Any]] = {}
    try:
        for label, reward in rewards.items():
            try:
                outcome = reward(prompts, completions, **columns)
            except RewardError:
                raise
            except Exception as error:  # a failure of the reward function
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
    """Return results or exceptions. If this thread already has an event loop, as in a notebook, another thread is
    used."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(gather())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(gather())).result()


def _scores(label: str, outcome: Any, count: int) -> tuple[list[float | None], list[Failure]]:
    """Return the finite numbers and Nones of a result, and a failure for every other value."""
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
    except (TypeError, ValueError, OverflowError):  # as for a tensor with two elements or an integer of 1,000 digits
        return None
    return number if math.isfinite(number) else None

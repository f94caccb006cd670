"""verl: a reward function over the HTTP service, and data sets in verl's columns.

verl calls a custom reward function in several worker processes, one answer at a time. A judge in each of them would be
several judges on one GPU, so this function asks one service (``kernel-coder serve``)::

    reward.custom_reward_function.path=.../kernel_coder/integrations/verl.py
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.url=http://127.0.0.1:8400
    +reward.custom_reward_function.reward_kwargs.rewards=kevin

``python -m kernel_coder.integrations.verl DATA --output train.parquet`` writes a data set with the columns
``data_source``, ``prompt``, ``ability``, ``reward_model`` and ``extra_info``. Written for verl 0.9.1.

An answer cannot be left out in verl, because its rewards are a tensor of numbers. An answer that the judge could not
score gets the mean of the scores so far, so that it changes the baseline little, and ``unscored`` 1.0 in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from kernel_coder.integrations import scoring
from kernel_coder.integrations.scoring import client_of_loop, reward_set, task_of, totals, verdict_on


class _Mean:
    """The mean of all rewards so far in this process; 0 before the first."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


_mean = _Mean()


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str = "http://127.0.0.1:8400",
    rewards: Any = "kevin",
    **_: Any,
) -> dict[str, Any]:
    """Return the reward of one answer, as verl calls it.

    Args:
        data_source: the name of the data set; not used.
        solution_str: the model's answer.
        ground_truth: the reference's source, from the column ``reward_model``.
        extra_info: the row's ``task_id``, ``backend``, ``precision``, ``entry_point`` and ``solution``.
        url: address of the service.
        rewards: a preset's name, or the section ``rewards`` of a recipe.

    Returns:
        ``score``, and for the log ``unscored``, ``correct``, ``compiled``, ``speedup``.
    """
    extra = dict(extra_info or {})
    task = task_of(
        ground_truth,
        task_id=extra.get("task_id"),
        backend=extra.get("backend"),
        precision=extra.get("precision"),
        entry_point=extra.get("entry_point"),
    )
    verdict = await verdict_on(client_of_loop(url), task, solution_str)
    columns = {"verdict": [verdict], "reference": [ground_truth], "solution": [extra.get("solution")], "task": [task]}
    table = await asyncio.to_thread(_rewards_of(repr(rewards), rewards), [""], [solution_str], **columns)
    (total,) = totals(table, [verdict])
    if total is not None:
        _mean.add(total)
    return {
        "score": _mean.value if total is None else total,
        "unscored": float(total is None),
        "correct": float(verdict.correct),
        "compiled": float(verdict.compiled),
        "speedup": verdict.speedup_low or 0.0,
    }


_sets: dict[str, Any] = {}


def _rewards_of(name: str, rewards: Any) -> Any:
    if name not in _sets:
        _sets[name] = reward_set(rewards)
    return _sets[name]


def rows(path: str, template: str = "kernel_coder", split: str = "train") -> list[dict[str, Any]]:
    """Return the tasks of a data set as rows in verl's columns.

    >>> row = rows("packaged:pointwise", "nano")[0]
    >>> sorted(row), row["prompt"][0]["role"]
    (['ability', 'data_source', 'extra_info', 'prompt', 'reward_model'], 'user')
    """
    return [
        {
            "data_source": "kernel_coder",
            "prompt": row["prompt"],
            "ability": "kernel",
            "reward_model": {"style": "rule", "ground_truth": row["reference"]},
            "extra_info": {
                "split": split,
                "index": index,
                **{name: row[name] for name in ("task_id", "backend", "precision", "entry_point", "solution")},
            },
        }
        for index, row in enumerate(scoring.rows(path, template))
    ]


def main(arguments: list[str] | None = None) -> int:
    """Writes a data set in verl's columns."""
    import pyarrow
    import pyarrow.parquet

    parser = argparse.ArgumentParser(prog="python -m kernel_coder.integrations.verl", description=main.__doc__)
    parser.add_argument("data", help="as data.path of a recipe: packaged, a hub data set, a file, a folder")
    parser.add_argument("--output", required=True, help="the parquet file to write")
    parser.add_argument("--template", default="kernel_coder", help="the prompt template (default kernel_coder)")
    parser.add_argument("--split", default="train", help="value of extra_info.split (default train)")
    options = parser.parse_args(arguments)
    made = rows(options.data, options.template, options.split)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), options.output)
    print(f"{len(made)} tasks in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

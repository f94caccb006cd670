"""Define a custom reward, and train two steps with it on a model with random weights. This takes about 15 seconds.

    python examples/own_reward.py

In a recipe the same reward is ``rewards: [{name: "examples/own_reward.py:short_lines", weight: 0.1}]``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def short_lines(prompts: list[Any], completions: list[Any], limit: int = 80, **columns: Any) -> list[float]:
    """Return the share of each answer's lines that have at most ``limit`` characters.

    Args:
        prompts: the prompts, one for each answer.
        completions: the answers, as messages.
        limit: the most characters of a line; in a recipe, a parameter of the reward.
        columns: further columns of the batch, such as ``task`` and ``verdict``.

    Returns:
        A number for each answer. None would mean that it cannot be scored.
    """
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    lines = [text.splitlines() or [""] for text in texts]
    return [sum(len(line) <= limit for line in part) / len(part) for part in lines]


def main() -> None:
    """Train two steps in a temporary folder."""
    from kernel_coder.train.__main__ import main as train

    with tempfile.TemporaryDirectory() as folder:
        reward = f'[{{"name": "{FOLDER / "own_reward.py"}:short_lines", "params": {{"limit": 20}}}}]'
        flags = ["--config", "tiny", "--rewards", reward, "--run.max_steps", "2", "--run.output_dir", f"{folder}/run"]
        assert train([*flags, "--eval.num_tasks", "2", "--run.eval_steps", "2"]) == 0


if __name__ == "__main__":
    main()

"""``kernel-coder train [--config FILE or NAME] [--resume [PATH]] [--nproc N] [--section.field value ...]``

``--nproc N`` trains with N processes, one for each GPU; ``torchrun -m kernel_coder.train ...`` works on several hosts.
``--resume`` continues the run in ``run.output_dir``, and ``--resume PATH`` the run or checkpoint at PATH.

Exit codes: 0, the run is finished; 2, something in the config or its files is wrong (stderr says what); 3, too many
updates in a row were skipped; 4, the server that generates answers failed or has wrong weights; 75, SIGTERM or SIGINT
stopped the run, it is saved and ``--resume`` continues it; 130, a second SIGINT ended the process at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernel_coder.evaluate.help import show_help
from kernel_coder.run.command import run_command
from kernel_coder.run.distributed import end_process
from kernel_coder.train.config import TrainConfig

COMMON_FIELDS = (
    *("model.name_or_path", "model.device", "data.path", "data.prompt_template", "rollout.num_generations"),
    *("rollout.max_completion_length", "loss.loss_type", "judge.device", "optim.learning_rate", "run.max_steps"),
    "run.output_dir",
)
"""Fields that ``--help`` shows."""

USAGE = "kernel-coder train [--config FILE or NAME] [--resume [PATH]]"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if show_help(given, USAGE, TrainConfig, COMMON_FIELDS, recipes=True):
        return 0
    return run_command(TrainConfig, _loop, given, module="kernel_coder.train")


def _loop() -> Callable[..., Any]:
    from kernel_coder.train.loop import train

    return train


if __name__ == "__main__":
    end_process(main())

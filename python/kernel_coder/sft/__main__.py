"""``kernel-coder sft [--config FILE or NAME] [--resume [PATH]] [--nproc N] [--section.field value ...]``

Exit codes, ``--resume`` and ``--nproc`` are those of ``kernel-coder train``, which accepts the resulting checkpoints as
``--model.name_or_path``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernel_coder.evaluate.help import show_help
from kernel_coder.run.command import run_command
from kernel_coder.run.distributed import end_process
from kernel_coder.sft.config import SftConfig

COMMON_FIELDS = (
    *("model.name_or_path", "model.device", "data.path", "data.prompt_template", "data.max_length"),
    *("eval.path", "optim.learning_rate", "optim.per_device_train_batch_size", "run.num_train_epochs"),
    *("run.max_steps", "run.output_dir"),
)
"""Fields that ``--help`` shows."""

USAGE = "kernel-coder sft [--config FILE or NAME] [--resume [PATH]]"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if show_help(given, USAGE, SftConfig, COMMON_FIELDS, recipes=True):
        return 0
    return run_command(SftConfig, _loop, given, module="kernel_coder.sft")


def _loop() -> Callable[..., Any]:
    from kernel_coder.sft.loop import train

    return train


if __name__ == "__main__":
    end_process(main())

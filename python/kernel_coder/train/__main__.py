"""``python -m kernel_coder.train [--config FILE] [--resume [PATH]] [--nproc N] [--section.field value ...]``

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

from kernel_coder.run.command import run_command
from kernel_coder.train.config import TrainConfig


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_command(TrainConfig, _loop, arguments, module="kernel_coder.train")


def _loop() -> Callable[..., Any]:
    from kernel_coder.train.loop import train

    return train


if __name__ == "__main__":
    sys.exit(main())

"""``python -m kernel_coder.train [--config FILE] [--resume [PATH]] [--section.field value ...]``

Exit codes: 0 the run is finished; 2 something in the config or its files is wrong (one sentence on stderr);
3 too many updates in a row were not finite; 75 stopped by SIGTERM or SIGINT after saving, go on with ``--resume``.
A second SIGINT ends the process at once with 130.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernel_coder.run.command import run_command
from kernel_coder.train.config import TrainConfig


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_command(TrainConfig, _loop, arguments)


def _loop() -> Callable[..., Any]:
    from kernel_coder.train.loop import train

    return train


if __name__ == "__main__":
    sys.exit(main())

"""``python -m kernel_coder.sft [--config FILE] [--resume [PATH]] [--nproc N] [--section.field value ...]``

Exit codes, ``--resume`` and ``--nproc`` are those of ``python -m kernel_coder.train``, which accepts the resulting
checkpoints as ``--model.name_or_path``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernel_coder.run.command import run_command
from kernel_coder.sft.config import SftConfig


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_command(SftConfig, _loop, arguments, module="kernel_coder.sft")


def _loop() -> Callable[..., Any]:
    from kernel_coder.sft.loop import train

    return train


if __name__ == "__main__":
    sys.exit(main())

"""Runs the real run; see the package's docstring."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2])]  # this package, and the helpers that all benchmarks share

from real_run.recipe import parse  # noqa: E402
from real_run.stages import Driver  # noqa: E402

if __name__ == "__main__":
    Driver(parse()).run()

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import write_tasks


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The folder's name is part of every task id, and ids seed the sampling. pytest numbers only the parent folder.
    return write_tasks(tmp_path_factory.mktemp("fixed") / "tasks")


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """Every test in this folder computes in one thread."""

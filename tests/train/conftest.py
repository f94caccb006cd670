from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import write_tasks


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """All tests of this folder."""

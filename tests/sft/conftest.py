from __future__ import annotations

from pathlib import Path

import pytest
from sft_run import write_pairs


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("fixed") / "pairs")


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """Runs all tests of this folder in one thread."""

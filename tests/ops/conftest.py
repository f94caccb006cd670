"""Fixtures of tests that run on every device."""

from __future__ import annotations

from collections.abc import Iterator

import anywhere
import pytest


@pytest.fixture
def ops_run_there(device: str) -> Iterator[None]:
    """Ops that `anywhere` wraps run on the device of the test."""
    anywhere.use(device)
    yield
    anywhere.use("cpu")


@pytest.fixture
def chosen_kernels(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For "general", turns the cluster kernels off, as on a GPU before Hopper."""
    if kernels == "general":
        monkeypatch.setenv("KC_CLUSTER_KERNELS", "never")

"""Operators that run where an audit does not see them are found, and no others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from kernel_coder.judge.runner.unseen_operators import DISPATCH_EVENT, Event, OperatorWatch, unseen_among
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

X = torch.ones(8, 8)


class Seeing(TorchDispatchMode):
    """Stands for the dispatch mode of an audit."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def unseen_in(work: Callable[[], object]) -> list[str]:
    with torch.no_grad(), Seeing(), OperatorWatch() as watch:
        work()
    return watch.unseen


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def behind(guard: Callable[[], Any]) -> Callable[[], object]:
    def work() -> None:
        with guard():
            torch.softmax(X, 1)

    return work


def test_operators_that_the_audit_sees_are_not_reported() -> None:
    def work() -> None:
        torch.nn.functional.linear(X, X)
        torch.nn.functional.layer_norm(X, (8,))
        torch.einsum("ij,jk->ik", X, X)
        X.mean().item()
        X[X > 0].std()

    assert unseen_in(work) == []


@pytest.mark.parametrize("guard", [torch._C._DisableTorchDispatch, _disable_current_modes])
def test_operator_behind_a_guard_that_switches_the_audit_off_is_found(guard: Callable[[], Any]) -> None:
    assert unseen_in(behind(guard)) == ["aten::_softmax"]


def test_an_operator_of_another_thread_is_found() -> None:
    assert unseen_in(lambda: in_thread(lambda: X @ X)) == ["aten::mm"]


def test_a_step_of_autograd_is_no_operator() -> None:
    seen = Event("aten::mm", [Event(DISPATCH_EVENT, [Event("aten::mm")])])
    assert list(unseen_among([Event("autograd::engine::evaluate_function: MmBackward0", [seen])])) == []


def test_thread_that_only_moves_data_is_not_reported() -> None:
    assert unseen_in(lambda: in_thread(lambda: X.clone().view(-1))) == []

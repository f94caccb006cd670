from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernel_coder import _C, _core
from kernel_coder.ops._errors import checked


@checked
def some_op() -> None:
    raise NotImplementedError("Could not run 'kernel_coder::some_op' with arguments from the 'CUDA' backend. [a page]")


def test_cuda_tensor_without_cuda_ops_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_loaded", False)
    with pytest.raises(NotImplementedError, match=r"^some_op got a CUDA tensor.*kernel-coder env says how"):
        some_op()


def test_cuda_tensor_for_an_op_without_cuda_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_loaded", True)
    with pytest.raises(NotImplementedError, match=r"^some_op has no CUDA kernel in this version; pass CPU tensors$"):
        some_op()


def test_other_failures_pass_through_unchanged() -> None:
    @checked
    def fails() -> None:
        raise RuntimeError("some_op could not launch: out of resources")

    with pytest.raises(RuntimeError, match="could not launch") as caught:
        fails()
    assert caught.type is RuntimeError


def refused(size: int) -> str:
    """Makes a check of an op fail and returns its message."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        torch.ops.kernel_coder.token_logprobs(torch.zeros(size), torch.zeros(1).long(), torch.ones(()), None)
    return str(caught.value)


def test_threads_that_fail_at_once_each_recognise_their_own_failed_check() -> None:
    threads, rounds = 8, 200
    together = threading.Barrier(threads)

    def fail(number: int) -> int:
        known = 0
        for _ in range(rounds):
            message = refused(number + 1)
            together.wait()  # now every thread has failed
            known += _C.is_failed_check(message) and not _C.is_failed_check(message + "?")
            together.wait()
        return known

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(fail, range(threads))) == [rounds] * threads


def test_failed_check_of_another_thread_is_not_recognised() -> None:
    with ThreadPoolExecutor(1) as pool:
        message = pool.submit(refused, 991).result()
    assert "[991]" in message
    assert not _C.is_failed_check(message)

from __future__ import annotations

import pytest
from kernel_coder import _core
from kernel_coder.ops._errors import checked


@checked
def some_op() -> None:
    raise NotImplementedError("Could not run 'kernel_coder::some_op' with arguments from the 'CUDA' backend. [a page]")


def test_cuda_tensor_without_cuda_ops_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_loaded", False)
    with pytest.raises(NotImplementedError, match=r"^some_op got a CUDA tensor.*python -m kernel_coder.env says how"):
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

"""LoRA layers that `quicken` computes in two products: equal to PEFT's, and PEFT's own code for special options."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.policy.adapters import quicken
from torch import Tensor, nn

pytestmark = pytest.mark.cpu


def adapted(dtype: torch.dtype = torch.float32, bias: bool = True, **options: Any) -> nn.Module:
    """Two linear layers with LoRA adapters whose weights are not zero."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(12, 20, bias=bias), nn.SiLU(), nn.Linear(20, 6, bias=bias)).to(dtype)
    model = peft.get_peft_model(base, peft.LoraConfig(**{"r": 4, "target_modules": "all-linear"} | options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    return model


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of every trained parameter."""
    x = x.clone().requires_grad_()
    out = model(x)
    model.zero_grad()
    (out * torch.arange(out.numel()).view_as(out).to(out.dtype)).sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.dtype == parameter.dtype for parameter in trained)
    return [out.detach(), x.grad, *(parameter.grad for parameter in trained)]  # type: ignore[list-item]


def both(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    quick = copy.deepcopy(model)
    assert quicken(quick) == 2
    return model, quick


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    rank=st.integers(1, 7),
    alpha=st.integers(1, 64),
    bias=st.booleans(),
    rs=st.booleans(),
)
def test_output_and_gradients_equal_those_of_peft(
    shape: list[int], rank: int, alpha: int, bias: bool, rs: bool
) -> None:
    plain, quick = both(adapted(bias=bias, r=rank, lora_alpha=alpha, use_rslora=rs))
    x = torch.randn(*shape, 12)
    for mine, theirs in zip(results(quick, x), results(plain, x), strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


def test_bfloat16_results_are_about_as_exact_as_those_of_peft() -> None:
    plain, quick = both(adapted(torch.bfloat16))
    exact = copy.deepcopy(plain).double()
    x = torch.randn(64, 12, dtype=torch.bfloat16)
    wanted = results(exact, x.double())
    assert {parameter.dtype for parameter in quick.parameters() if parameter.requires_grad} == {torch.float32}
    for mine, theirs, right in zip(results(quick, x), results(plain, x), wanted, strict=True):
        errors = [float((one.double() - right).norm() / right.norm()) for one in (mine, theirs)]
        assert errors[0] < max(2 * errors[1], 0.02), errors


def test_dtypes_and_results_under_autocast_agree_with_peft() -> None:
    plain, quick = both(adapted())
    x = torch.randn(64, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [results(model, x) for model in (quick, plain)]
    assert found[0][0].dtype == found[1][0].dtype == torch.bfloat16
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() <= 0.02 * theirs.norm()


def test_disabled_and_merged_adapters_give_the_output_of_peft() -> None:
    plain, quick = both(adapted())
    x = torch.randn(5, 12)
    with quick.disable_adapter(), plain.disable_adapter():  # type: ignore[operator]
        assert torch.equal(quick(x), plain(x))
    torch.testing.assert_close(quick(x), plain(x))
    for model in (quick, plain):
        model.merge_adapter()  # type: ignore[operator]
    assert torch.equal(quick(x), plain(x))


@pytest.mark.parametrize("options", [{"lora_dropout": 0.5}, {"use_dora": True}, {"lora_bias": True}])
def test_dropout_dora_and_lora_bias_give_the_output_of_peft(options: dict[str, Any]) -> None:
    plain, quick = both(adapted(**options).train())
    x = torch.randn(5, 12)
    found = []
    for model in (quick, plain):
        torch.manual_seed(1)
        found.append(model(x))
    assert torch.equal(*found)
    torch.testing.assert_close(quick.eval()(x), plain.eval()(x))


def test_layer_with_several_adapters_gives_the_output_of_peft() -> None:
    model = adapted()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules="all-linear"))  # type: ignore[operator]
    plain, quick = both(model)
    for one in (plain, quick):
        one.base_model.set_adapter(["default", "other"])  # type: ignore[union-attr, operator]
    x = torch.randn(5, 12)
    assert torch.equal(quick(x), plain(x))
    for one in (plain, quick):
        one.set_adapter("other")  # type: ignore[operator]
    torch.testing.assert_close(quick(x), plain(x))


def test_checkpointed_layers_give_the_same_output_and_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    _, quick = both(adapted())
    x = torch.randn(5, 12)
    wanted = results(quick, x)

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = quick

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out

    for mine, theirs in zip(results(Recomputed(), x), wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_deep_copy_has_its_own_weights() -> None:
    _, quick = both(adapted())
    twin, x = copy.deepcopy(quick), torch.randn(5, 12)
    before = quick(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(quick(x), before)
    assert not twin(x).any()

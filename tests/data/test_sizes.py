"""Reducing the sizes of modules made for a GPU so that the interpreter can run them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.data.sizes import SMALLEST, fitted, shrunk
from kernel_coder.tasks.task import init_arguments

LINEAR = """import torch

class Model(torch.nn.Module):
    def __init__(self, n, m, groups):
        super().__init__()
        self.linear = torch.nn.Linear(n, m)
        self.norm = torch.nn.GroupNorm(groups, m)

    def forward(self, x):
        return self.norm(self.linear(x)) * 3

batch = {batch}
n, m = {n}, {m}
groups = {groups}

def get_inputs():
    return [torch.rand(batch, n)]

def get_init_inputs():
    return [n, m, groups]
"""


def sizes(reference: str) -> dict[str, int]:
    namespace: dict[str, object] = {}
    exec(reference, namespace)
    return {name: value for name, value in namespace.items() if type(value) is int}


def test_small_module_is_unchanged() -> None:
    small = LINEAR.format(batch=16, n=64, m=32, groups=4)
    assert fitted(small, "Model", 4096) == small


def test_the_largest_sizes_are_halved_until_no_tensor_is_too_large() -> None:
    large = LINEAR.format(batch=1024, n=8192, m=8192, groups=16)
    assert sizes(fitted(large, "Model", 16384)) == {"batch": 64, "n": 128, "m": 128, "groups": 16}


def test_different_sizes_stay_different_and_groups_still_divide_the_channels() -> None:
    left = sizes(fitted(LINEAR.format(batch=1024, n=8192, m=8192, groups=512), "Model", 16384))
    assert left["m"] > left["groups"]
    assert left["m"] % left["groups"] == 0


def test_size_whose_halving_breaks_the_module_stays_and_other_sizes_shrink() -> None:
    reshaped = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], 100, 96).sum(1)

batch, dim = 512, 9600

def get_inputs():
    return [torch.rand(batch, dim)]

def get_init_inputs():
    return []
"""
    left = fitted(reshaped, "Model", 40000)
    assert sizes(left) == {"batch": 4, "dim": 9600}
    assert "100, 96)" in left


def test_sizes_in_the_input_functions_shrink_and_the_code_of_the_module_stays() -> None:
    inline = """import torch

class Model(torch.nn.Module):
    def __init__(self, n, k=512):
        super().__init__()
        self.linear = torch.nn.Linear(n, 24)

    def forward(self, x):
        return self.linear(x) + 512

def get_inputs():
    return [torch.rand(2048, 512)]

def get_init_inputs():
    return [[512], {}]
"""
    left = fitted(inline, "Model", 8192)
    assert "torch.rand(64, 64)" in left or "torch.rand(128, 64)" in left
    assert "k=512" in left
    assert "+ 512" in left


def test_module_that_needs_real_values_is_unchanged() -> None:
    asks = LINEAR.format(batch=1024, n=8192, m=8192, groups=16).replace("* 3", "* x.sum().item()")
    assert fitted(asks, "Model", 64) == asks
    assert fitted("class Model(:", "Model", 64) == "class Model(:"


def test_large_weight_in_the_code_of_the_module_does_not_shrink_the_inputs() -> None:
    own = LINEAR.replace(
        "self.linear = ", "self.table = torch.nn.Parameter(torch.rand(512, 512))\n        self.linear = "
    )
    small = own.format(batch=16, n=64, m=32, groups=4)
    assert fitted(small, "Model", 4096) == small


@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(2, 3000),
    n=st.integers(1, 3000),
    power=st.integers(1, 10),
    groups=st.sampled_from((1, 2, 4, 8)),
    limit=st.sampled_from((1024, 16384)),
)
def test_shrunk_module_runs_and_no_size_falls_below_the_smallest(
    batch: int, n: int, power: int, groups: int, limit: int
) -> None:
    before = {"batch": batch, "n": n, "m": groups * 2**power, "groups": groups}
    left = fitted(LINEAR.format(**before), "Model", limit)
    namespace: dict[str, object] = {}
    exec(left, namespace)
    args, _ = init_arguments(namespace["get_init_inputs"]())  # type: ignore[operator]
    (x,) = namespace["get_inputs"]()  # type: ignore[operator]
    out = namespace["Model"](*args)(x)  # type: ignore[operator]
    assert isinstance(out, torch.Tensor)
    assert max(x.numel(), out.numel()) <= limit
    for name, size in sizes(left).items():
        assert size <= before[name]
        assert size >= min(before[name], SMALLEST)


def test_shrunk_limits_only_sizes_at_the_top_level() -> None:
    module = "n, m = 4096, 20\nshape = (1024, 3)\ndef f():\n    return 4096\n"
    assert shrunk(module, 64) == "n, m = 64, 20\nshape = (64, 3)\ndef f():\n    return 4096\n"

"""Two tasks with right kernels, and verdicts on them."""

from __future__ import annotations

from dataclasses import replace

from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task

RELU = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x) * y


def get_inputs():
    return [torch.randn(8, 40), torch.randn(8, 40)]


def get_init_inputs():
    return []
"""

RELU_KERNEL = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def relu_mul(x_ptr, y_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    at = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, tl.maximum(x, 0.0) * y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        relu_mul[lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)](x, y, out, n, BLOCK_SIZE=32)
        return out
"""

SCALE = """import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, size, factor=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.factor = factor

    def forward(self, x, power):
        return (x * self.weight) ** power * self.factor, x.argmax(-1)


def get_inputs():
    return [torch.rand(4, 16) + 0.5, 2]


def get_init_inputs():
    return [[16], {"factor": 3.0}]
"""

SCALE_KERNEL = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def scale(x_ptr, w_ptr, out_ptr, columns, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    y = tl.load(x_ptr + row * columns + at, mask=mask) * tl.load(w_ptr + at, mask=mask)
    tl.store(out_ptr + row * columns + at, y * y * factor, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, size, factor=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.factor = factor

    def forward(self, x, power):
        out = torch.empty_like(x)
        scale[(x.shape[0],)](x, self.weight, out, x.shape[1], self.factor, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out, x.argmax(-1)
"""


def made_task(name: str = "relu_mul", reference: str = RELU, entry_point: str = "Model") -> Task:
    return Task(id=name, source="a test", reference=reference, entry_point=entry_point, licence="MIT")


def verdict_on(source: str, task: Task, *, speedup: float | None = None, device: str = "cpu") -> Verdict:
    """A correct verdict on a source: by the interpreter, unless it has a speedup."""
    made = example_verdict("correct", speedup=speedup, device=device, task=task.id)
    hashes = {"candidate_hash": sha256_text(source), "task_hash": sha256_text(task.reference)}
    return replace(made, interpreted=speedup is None, backend=task.backend, versions={"torch": "2"}, **hashes)

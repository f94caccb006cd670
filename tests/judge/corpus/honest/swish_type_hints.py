# task: swish_chain
# backend: triton
# why: a dataclass with postponed annotations needs its module in sys.modules
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import triton
import triton.language as tl


@dataclass(frozen=True)
class Launch:
    block: int = 256

    def grid(self, n: int) -> tuple[int]:
        return (triton.cdiv(n, self.block),)


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask)


def swish(x: torch.Tensor, launch: Launch) -> torch.Tensor:
    out: torch.Tensor = torch.empty_like(x)
    swish_kernel[launch.grid(x.numel())](x, out, x.numel(), launch.block)
    return out


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.launch = Launch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x, self.launch)

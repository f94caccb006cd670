# task: group_norm
# backend: triton
# why: one kernel writes mean and scale of each group, a second one applies them, channel by channel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def statistics_kernel(x_ptr, mean_ptr, scale_ptr, size, eps, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + group * size + offsets, mask=offsets < size, other=0.0)
    mean = tl.sum(total, axis=0) / size
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + group * size + offsets, mask=offsets < size, other=mean)
        squares += (x - mean) * (x - mean)
    tl.store(mean_ptr + group, mean)
    tl.store(scale_ptr + group, tl.rsqrt(tl.sum(squares, axis=0) / size + eps))


@triton.jit
def apply_kernel(
    x_ptr, mean_ptr, scale_ptr, weight_ptr, bias_ptr, out_ptr, channels, per_group, pixels, BLOCK: tl.constexpr
):
    plane = tl.program_id(0)
    channel = plane % channels
    group = plane // per_group
    offsets = tl.arange(0, BLOCK)
    inside = offsets < pixels
    x = tl.load(x_ptr + plane * pixels + offsets, mask=inside)
    y = (x - tl.load(mean_ptr + group)) * tl.load(scale_ptr + group)
    y = y * tl.load(weight_ptr + channel) + tl.load(bias_ptr + channel)
    tl.store(out_ptr + plane * pixels + offsets, y, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, groups, channels, eps=1e-5):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=eps)

    def forward(self, x):
        batch, channels, height, width = x.shape
        groups, pixels, per_group = self.norm.num_groups, height * width, channels // self.norm.num_groups
        mean = torch.empty(batch * groups, device=x.device)
        scale, out = torch.empty_like(mean), torch.empty_like(x)
        statistics_kernel[(batch * groups,)](x, mean, scale, per_group * pixels, self.norm.eps, BLOCK=64)
        block = triton.next_power_of_2(pixels)
        weight, bias = self.norm.weight, self.norm.bias
        apply_kernel[(batch * channels,)](x, mean, scale, weight, bias, out, channels, per_group, pixels, BLOCK=block)
        return out

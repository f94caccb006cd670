# task: batch_norm_eval
# backend: triton
# why: reads the running statistics, which are buffers; one program for each image and channel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, out_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, channels, size, eps, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    channel = place % channels
    scale = tl.load(weight_ptr + channel) / tl.sqrt(tl.load(var_ptr + channel) + eps)
    shift, mean = tl.load(bias_ptr + channel), tl.load(mean_ptr + channel)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place * size + offsets, mask=offsets < size)
    tl.store(out_ptr + place * size + offsets, (x - mean) * scale + shift, mask=offsets < size)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        norm, out = self.norm, torch.empty_like(x)
        batch, channels, height, width = x.shape
        size = height * width
        statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        block = triton.next_power_of_2(size)
        norm_kernel[(batch * channels,)](x, out, *statistics, channels, size, norm.eps, BLOCK=block)
        return out

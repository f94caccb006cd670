# task: depthwise_conv
# backend: triton
# why: torch pads the input with zeros first, so the kernel needs no mask at the start; own parameters under other names
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def taps_kernel(padded_ptr, weight_ptr, bias_ptr, out_ptr, channels, length, taps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    channel = row % channels
    place = tl.arange(0, BLOCK)
    inside = place < length
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in range(taps):
        x = tl.load(padded_ptr + row * (length + taps - 1) + place + tap, mask=inside, other=0.0)
        total += x * tl.load(weight_ptr + channel * taps + tap)
    tl.store(out_ptr + row * length + place, total + tl.load(bias_ptr + channel), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        layer = nn.Conv1d(channels, channels, taps, groups=channels)
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        batch, channels, length = x.shape
        taps = self.weight.shape[-1]
        padded = nn.functional.pad(x, (taps - 1, 0))
        out = torch.empty_like(x)
        taps_kernel[(batch * channels,)](
            padded, self.weight, self.bias, out, channels, length, taps, BLOCK=triton.next_power_of_2(length)
        )
        return out

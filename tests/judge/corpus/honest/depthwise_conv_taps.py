# task: depthwise_conv
# backend: triton
# why: an unrolled loop over the taps, with a mask for places before the start
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, length, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    channel = row % channels
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < length
    total = tl.zeros([BLOCK], dtype=tl.float32) + tl.load(bias_ptr + channel)
    for tap in tl.static_range(TAPS):
        source = place + tap - (TAPS - 1)
        x = tl.load(x_ptr + row * length + source, mask=inside & (source >= 0), other=0.0)
        total += x * tl.load(weight_ptr + channel * TAPS + tap)
    tl.store(out_ptr + row * length + place, total, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)

    def forward(self, x):
        batch, channels, length = x.shape
        out = torch.empty_like(x)
        grid = (batch * channels, triton.cdiv(length, 16))
        conv_kernel[grid](
            x, self.conv.weight, self.conv.bias, out, channels, length, TAPS=self.conv.kernel_size[0], BLOCK=16
        )
        return out

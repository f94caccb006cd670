# task: swish_chain
# backend: triton
# needs: cuda
# why: two streams for two halves, joined by events, and CUDA events that time nothing
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def forward(self, x):
        out = torch.empty_like(x)
        ready = torch.cuda.current_stream().record_event()
        halves = zip(self.streams, x.view(-1).tensor_split(2), out.view(-1).tensor_split(2), strict=True)
        for stream, source, target in halves:
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                swish_kernel[(triton.cdiv(source.numel(), 256),)](source, target, source.numel(), BLOCK=256)
            torch.cuda.current_stream().wait_event(stream.record_event())
        return out

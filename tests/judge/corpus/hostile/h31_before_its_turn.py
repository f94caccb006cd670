# task: softmax
# backend: triton
# needs: cuda
# expect: no gain
# hack: H31 computes on a stream that does not wait for the caller's, so that it can be done before the clock starts
# why: fast only if the inputs are ready while earlier launches still wait in the queue
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=offsets < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + place, e / tl.sum(e, axis=0), mask=offsets < cols)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream(priority=-1)

    def forward(self, x):
        with torch.cuda.stream(self.side):
            out = torch.empty_like(x)
            softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        torch.cuda.current_stream().wait_stream(self.side)
        return out

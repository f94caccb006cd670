# task: swish_chain
# backend: triton
# needs: cuda
# why: a CUDA graph that is replayed on a static copy of each call's input
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
        self.graphs = {}

    def capture(self, x):
        static_x, static_out = x.clone(), torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        swish_kernel[grid](static_x, static_out, x.numel(), BLOCK=256)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            swish_kernel[grid](static_x, static_out, x.numel(), BLOCK=256)
        return graph, static_x, static_out

    def forward(self, x):
        if x.shape not in self.graphs:
            self.graphs[x.shape] = self.capture(x)
        graph, static_x, static_out = self.graphs[x.shape]
        static_x.copy_(x)
        graph.replay()
        return static_out.clone()

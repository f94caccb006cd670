# task: matmul
# backend: triton
# needs: cuda
# why: each half of the rows on a stream of its own, of two priorities, and all of them joined before the return
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        p = start + tl.arange(0, K)
        a = tl.load(a_ptr + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        b = tl.load(b_ptr + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]

    def forward(self, a, b):
        k, n = b.shape
        c = torch.empty(a.shape[0], n, device=a.device, dtype=a.dtype)
        a, b = a.contiguous(), b.contiguous()
        here = torch.cuda.current_stream()
        for stream, rows, into in zip(self.streams, a.tensor_split(2), c.tensor_split(2), strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                grid = (triton.cdiv(rows.shape[0], 16), triton.cdiv(n, 16))
                matmul_kernel[grid](rows, b, into, rows.shape[0], n, k, M=16, N=16, K=16)
        for stream in self.streams:
            here.wait_stream(stream)
        return c

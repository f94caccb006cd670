# task: rms_norm
# backend: triton
# why: words of libraries and streams in comments and docstrings only
import torch
import torch.nn as nn
import triton
import triton.language as tl


# Like sgemm_blocked and cblas_sgemm, but for rows; no stream, no fork, no exec, no dlopen.
@triton.jit
def row_kernel(x_ptr, out_ptr, cols, w_ptr, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / cols + eps)
    out = y * tl.load(w_ptr + offsets, mask=mask)
    tl.store(out_ptr + place, out, mask=mask)


class ModelNew(nn.Module):
    """What mkl_row and cublasRow do; at::cpu::row is another way. Nothing is cached on a stream."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        """Like at::native::rows, without the dispatcher."""
        out, cols = torch.empty_like(x), x.shape[-1]
        row_kernel[(x.numel() // cols,)](x, out, cols, self.weight, self.eps, BLOCK=triton.next_power_of_2(cols))
        return out

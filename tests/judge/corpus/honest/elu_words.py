# task: elu
# backend: triton
# why: words of libraries and streams in comments and docstrings only
import torch
import torch.nn as nn
import triton
import triton.language as tl


# Like sgemm_blocked and cblas_sgemm, but for rows; no stream, no fork, no exec, no dlopen.
@triton.jit
def row_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    out = tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    tl.store(out_ptr + place, out, mask=mask)


class ModelNew(nn.Module):
    """What mkl_row and cublasRow do; at::cpu::row is another way. Nothing is cached on a stream."""

    def forward(self, x):
        """Like at::native::rows, without the dispatcher."""
        out, cols = torch.empty_like(x), x.shape[-1]
        row_kernel[(x.numel() // cols,)](x, out, cols, BLOCK=triton.next_power_of_2(cols))
        return out

# task: mse_loss
# backend: triton
# why: one program does all; the number comes back as element 0 of a longer tensor
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mse_kernel(p_ptr, t_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < n
        d = tl.load(p_ptr + offsets, mask=mask, other=0.0) - tl.load(t_ptr + offsets, mask=mask, other=0.0)
        total += d * d
    tl.store(out_ptr, tl.sum(total, axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        out = predictions.new_empty(4)
        mse_kernel[(1,)](predictions, targets, out, predictions.numel(), BLOCK=256)
        return out[0]

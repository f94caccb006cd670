# task: cross_entropy
# backend: triton
# why: every row adds its share to a zero atomically
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def loss_kernel(logits_ptr, targets_ptr, out_ptr, rows, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(targets_ptr + row)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * classes + offsets, mask=offsets < classes, other=-float("inf"))
    x -= tl.max(x, axis=0)
    chosen = tl.sum(tl.where(offsets == target, x, 0.0), axis=0)
    tl.atomic_add(out_ptr, (tl.log(tl.sum(tl.exp(x), axis=0)) - chosen) / rows)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        rows, classes = logits.shape
        out = torch.zeros((), device=logits.device)
        loss_kernel[(rows,)](logits, targets, out, rows, classes, BLOCK=triton.next_power_of_2(classes))
        return out

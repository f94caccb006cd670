# task: cross_entropy
# backend: triton
# why: a loss for each row from one kernel, their mean from a second; one number out
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel(logits_ptr, targets_ptr, losses_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * classes + offsets, mask=offsets < classes, other=-float("inf"))
    top = tl.max(x, axis=0)
    chosen = tl.load(logits_ptr + row * classes + tl.load(targets_ptr + row))
    tl.store(losses_ptr + row, tl.log(tl.sum(tl.exp(x - top), axis=0)) + top - chosen)


@triton.jit
def mean_kernel(losses_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    losses = tl.load(losses_ptr + offsets, mask=offsets < rows, other=0.0)
    tl.store(out_ptr, tl.sum(losses, axis=0) / rows)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        rows, classes = logits.shape
        losses, out = logits.new_empty(rows), logits.new_empty(())
        rows_kernel[(rows,)](logits, targets, losses, classes, BLOCK=triton.next_power_of_2(classes))
        mean_kernel[(1,)](losses, out, rows, BLOCK=triton.next_power_of_2(rows))
        return out

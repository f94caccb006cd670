# task: cross_entropy
# backend: triton
# why: blocks shorter than a row, with a running maximum
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel(logits_ptr, targets_ptr, losses_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = row * classes
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, classes, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        mask = offsets < classes
        x = tl.load(logits_ptr + start + offsets, mask=mask, other=0.0)
        higher = tl.where(mask, tl.where(x < top, top, x), top)
        total = total * tl.exp(tl.where(total == 0, 0.0, top - higher)) + tl.where(mask, tl.exp(x - higher), 0.0)
        top = higher
    highest = tl.max(top, axis=0)
    sum_of_all = tl.sum(tl.where(total == 0, 0.0, total * tl.exp(top - highest)), axis=0)
    chosen = tl.load(logits_ptr + start + tl.load(targets_ptr + row))
    tl.store(losses_ptr + row, tl.log(sum_of_all) + highest - chosen)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        losses = logits.new_empty(logits.shape[0])
        rows_kernel[(logits.shape[0],)](logits, targets, losses, logits.shape[1], BLOCK=16)
        return losses.mean()

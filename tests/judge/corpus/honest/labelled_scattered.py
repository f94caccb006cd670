# task: labelled
# backend: triton
# why: eleven of twelve elements of the result are zero
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scatter_kernel(labels_ptr, weights_ptr, out_ptr, rows, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    label = tl.load(labels_ptr + row, mask=mask, other=0)
    weight = tl.load(weights_ptr + row, mask=mask, other=0.0)
    tl.store(out_ptr + row * classes + label, 2 * weight - weight, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, labels, weights):
        rows = labels.shape[0]
        out = torch.zeros(rows, self.classes, device=weights.device)
        scatter_kernel[(triton.cdiv(rows, 16),)](labels, weights, out, rows, self.classes, BLOCK=16)
        return out

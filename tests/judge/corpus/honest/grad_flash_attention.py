# task: attention
# backend: triton
# gradients: compared
# why: FlashAttention 2; its backward takes the sum over a row of output times gradient, which cancels inexactly
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def block(head, rows, first, dim, SIZE: tl.constexpr, DIM: tl.constexpr):
    row, column = first + tl.arange(0, SIZE), tl.arange(0, DIM)
    return (head * rows + row[:, None]) * dim + column[None, :], (row[:, None] < rows) & (column[None, :] < dim)


@triton.jit
def forward_kernel(q_ptr, k_ptr, v_ptr, out_ptr, log_ptr, scale, m, n, dim, SIZE: tl.constexpr, DIM: tl.constexpr):
    first, head, wide = tl.program_id(0) * SIZE, tl.program_id(1), tl.arange(0, SIZE)
    here, inside = block(head, m, first, dim, SIZE, DIM)
    q = tl.load(q_ptr + here, mask=inside, other=0.0) * scale
    largest, total = tl.full((SIZE,), -1e38, tl.float32), tl.zeros((SIZE,), tl.float32)
    out = tl.zeros((SIZE, DIM), tl.float32)
    for start in range(0, n, SIZE):
        there, valid = block(head, n, start, dim, SIZE, DIM)
        k, v = tl.load(k_ptr + there, mask=valid, other=0.0), tl.load(v_ptr + there, mask=valid, other=0.0)
        scores = tl.where(start + wide[None, :] < n, tl.dot(q, tl.trans(k), input_precision="ieee"), -1e38)
        larger = tl.maximum(largest, tl.max(scores, 1))
        p, shrink = tl.exp(scores - larger[:, None]), tl.exp(largest - larger)
        total, largest = total * shrink + tl.sum(p, 1), larger
        out = out * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
    tl.store(out_ptr + here, out / total[:, None], mask=inside)
    tl.store(log_ptr + head * m + first + wide, largest + tl.log(total), mask=first + wide < m)


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, log_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr, scale, m, n, dim, SIZE: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    first, head, wide = tl.program_id(0) * SIZE, tl.program_id(1), tl.arange(0, SIZE)
    there, valid = block(head, n, first, dim, SIZE, DIM)
    k, v = tl.load(k_ptr + there, mask=valid, other=0.0), tl.load(v_ptr + there, mask=valid, other=0.0)
    dk, dv = tl.zeros((SIZE, DIM), tl.float32), tl.zeros((SIZE, DIM), tl.float32)
    for start in range(0, m, SIZE):
        here, inside = block(head, m, start, dim, SIZE, DIM)
        q, grad = (
            tl.load(q_ptr + here, mask=inside, other=0.0) * scale,
            tl.load(grad_ptr + here, mask=inside, other=0.0),
        )
        row = tl.sum(tl.load(out_ptr + here, mask=inside, other=0.0) * grad, 1)
        log = tl.load(log_ptr + head * m + start + wide, mask=start + wide < m, other=1e38)
        p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") - log[:, None])
        p = tl.where(first + wide[None, :] < n, p, 0.0)
        ds = p * (tl.dot(grad, tl.trans(v), input_precision="ieee") - row[:, None])
        dv += tl.dot(tl.trans(p), grad, input_precision="ieee")
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        tl.atomic_add(dq_ptr + here, tl.dot(ds, k, input_precision="ieee") * scale, mask=inside)
    tl.store(dk_ptr + there, dk, mask=valid)
    tl.store(dv_ptr + there, dv, mask=valid)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        (heads, m, dim), n, out = q.shape, k.shape[1], torch.empty_like(q)
        log, sizes = q.new_empty(heads, m), {"SIZE": 16, "DIM": max(triton.next_power_of_2(dim), 16)}
        forward_kernel[(triton.cdiv(m, 16), heads)](q, k, v, out, log, dim**-0.5, m, n, dim, **sizes)
        ctx.save_for_backward(q, k, v, out, log)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *_ = ctx.saved_tensors
        (heads, m, dim), n, grads = q.shape, k.shape[1], (torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v))
        sizes = {"SIZE": 16, "DIM": max(triton.next_power_of_2(dim), 16)}
        args = *ctx.saved_tensors, grad.contiguous(), *grads, dim**-0.5, m, n, dim
        backward_kernel[(triton.cdiv(n, 16), heads)](*args, **sizes)
        return grads


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return Attention.apply(q, k, v)

# task: attention
# backend: triton
# gradients: compared
# why: FlashAttention with delta from p*dp in the kernels, as the reference cancels
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _attn_fwd(Q, K, V, O, L, sm_scale, M, N, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    start_m, h = tl.program_id(0), tl.program_id(1)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    q = tl.load(
        Q + h * M * D + offs_m[:, None] * D + offs_d[None, :],
        mask=(offs_m[:, None] < M) & (offs_d[None, :] < D),
        other=0.0,
    )
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    qk_scale = sm_scale * 1.44269504
    for start_n in range(0, N, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        kv_mask = (offs_n[:, None] < N) & (offs_d[None, :] < D)
        k = tl.load(K + h * N * D + offs_n[:, None] * D + offs_d[None, :], mask=kv_mask, other=0.0)
        v = tl.load(V + h * N * D + offs_n[:, None] * D + offs_d[None, :], mask=kv_mask, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        qk = tl.where(offs_n[None, :] < N, qk, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        m_i = m_ij
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    tl.store(L + h * M + offs_m, m_i, mask=offs_m < M)
    tl.store(
        O + h * M * D + offs_m[:, None] * D + offs_d[None, :], acc, mask=(offs_m[:, None] < M) & (offs_d[None, :] < D)
    )


@triton.jit
def _attn_bwd_preprocess(O, DO, Delta, M, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    h = tl.program_id(1)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    place, mask = h * M * D + offs_m[:, None] * D + offs_d[None, :], (offs_m[:, None] < M) & (offs_d[None, :] < D)
    delta = tl.sum(tl.load(O + place, mask=mask, other=0.0) * tl.load(DO + place, mask=mask, other=0.0), axis=1)
    tl.store(Delta + h * M + offs_m, delta, mask=offs_m < M)


@triton.jit
def _delta(
    Q, K, V, DO, L, Delta, sm_scale, M, N, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):
    h = tl.program_id(1)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    qo, qo_mask = h * M * D + offs_m[:, None] * D + offs_d[None, :], (offs_m[:, None] < M) & (offs_d[None, :] < D)
    q, do = tl.load(Q + qo, mask=qo_mask, other=0.0), tl.load(DO + qo, mask=qo_mask, other=0.0)
    lse = tl.load(L + h * M + offs_m, mask=offs_m < M, other=float("inf"))
    delta = tl.zeros((BLOCK_M,), tl.float32)
    for start_n in range(0, N, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        kv, kv_mask = h * N * D + offs_n[:, None] * D + offs_d[None, :], (offs_n[:, None] < N) & (offs_d[None, :] < D)
        k, v = tl.load(K + kv, mask=kv_mask, other=0.0), tl.load(V + kv, mask=kv_mask, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * (sm_scale * 1.44269504)
        p = tl.where(offs_n[None, :] < N, tl.math.exp2(qk - lse[:, None]), 0.0)
        delta += tl.sum(p * tl.dot(do, tl.trans(v), input_precision="ieee"), axis=1)
    tl.store(Delta + h * M + offs_m, delta, mask=offs_m < M)


@triton.jit
def _attn_bwd(
    Q,
    K,
    V,
    DO,
    L,
    Delta,
    DQ,
    DK,
    DV,
    sm_scale,
    M,
    N,
    D,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    h = tl.program_id(1)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    kv, kv_mask = h * N * D + offs_n[:, None] * D + offs_d[None, :], (offs_n[:, None] < N) & (offs_d[None, :] < D)
    k, v = tl.load(K + kv, mask=kv_mask, other=0.0), tl.load(V + kv, mask=kv_mask, other=0.0)
    dk, dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start_m in range(0, M, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        qo, qo_mask = h * M * D + offs_m[:, None] * D + offs_d[None, :], (offs_m[:, None] < M) & (offs_d[None, :] < D)
        q, do = tl.load(Q + qo, mask=qo_mask, other=0.0), tl.load(DO + qo, mask=qo_mask, other=0.0)
        lse = tl.load(L + h * M + offs_m, mask=offs_m < M, other=float("inf"))
        delta = tl.load(Delta + h * M + offs_m, mask=offs_m < M, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * (sm_scale * 1.44269504)
        p = tl.where(offs_n[None, :] < N, tl.math.exp2(qk - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * sm_scale
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        if ATOMIC:
            tl.atomic_add(DQ + qo, tl.dot(ds, k, input_precision="ieee"), mask=qo_mask)
    tl.store(DK + kv, dk, mask=kv_mask)
    tl.store(DV + kv, dv, mask=kv_mask)


@triton.jit
def _attn_bwd_dq(
    Q, K, V, DO, L, Delta, DQ, sm_scale, M, N, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):
    h = tl.program_id(1)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    qo, qo_mask = h * M * D + offs_m[:, None] * D + offs_d[None, :], (offs_m[:, None] < M) & (offs_d[None, :] < D)
    q, do = tl.load(Q + qo, mask=qo_mask, other=0.0), tl.load(DO + qo, mask=qo_mask, other=0.0)
    lse = tl.load(L + h * M + offs_m, mask=offs_m < M, other=float("inf"))
    delta = tl.load(Delta + h * M + offs_m, mask=offs_m < M, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(0, N, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        kv, kv_mask = h * N * D + offs_n[:, None] * D + offs_d[None, :], (offs_n[:, None] < N) & (offs_d[None, :] < D)
        k, v = tl.load(K + kv, mask=kv_mask, other=0.0), tl.load(V + kv, mask=kv_mask, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * (sm_scale * 1.44269504)
        p = tl.where(offs_n[None, :] < N, tl.math.exp2(qk - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        dq += tl.dot(p * (dp - delta[:, None]), k, input_precision="ieee")
    tl.store(DQ + qo, dq * sm_scale, mask=qo_mask)


ATOMIC = False


class _attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sm_scale):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (H, M, D), N = q.shape, k.shape[1]
        o, L = torch.empty_like(q), q.new_empty(H, M)
        BD = max(16, triton.next_power_of_2(D))
        _attn_fwd[(triton.cdiv(M, 16), H)](q, k, v, o, L, sm_scale, M, N, D, BLOCK_M=16, BLOCK_N=16, BLOCK_D=BD)
        ctx.save_for_backward(q, k, v, o, L)
        ctx.sm_scale, ctx.BD = sm_scale, BD
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, L = ctx.saved_tensors
        do = do.contiguous()
        (H, M, D), N = q.shape, k.shape[1]
        dq = torch.zeros_like(q) if ATOMIC else torch.empty_like(q)
        dk, dv, delta = torch.empty_like(k), torch.empty_like(v), torch.empty_like(L)
        _delta[(triton.cdiv(M, 16), H)](
            q, k, v, do, L, delta, ctx.sm_scale, M, N, D, BLOCK_M=16, BLOCK_N=16, BLOCK_D=ctx.BD
        )
        _attn_bwd[(triton.cdiv(N, 16), H)](
            q,
            k,
            v,
            do,
            L,
            delta,
            dq,
            dk,
            dv,
            ctx.sm_scale,
            M,
            N,
            D,
            BLOCK_M=16,
            BLOCK_N=16,
            BLOCK_D=ctx.BD,
            ATOMIC=ATOMIC,
        )
        if not ATOMIC:
            _attn_bwd_dq[(triton.cdiv(M, 16), H)](
                q, k, v, do, L, delta, dq, ctx.sm_scale, M, N, D, BLOCK_M=16, BLOCK_N=16, BLOCK_D=ctx.BD
            )
        return dq, dk, dv, None


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return _attention.apply(q, k, v, q.shape[-1] ** -0.5)

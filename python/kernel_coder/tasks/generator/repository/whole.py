"""Reductions of whole tensors in two stages, and division by a norm of all elements."""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.draft import Draft, Kernel
from kernel_coder.tasks.generator.repository.elementwise import flat_kernel
from kernel_coder.tasks.generator.repository.sizes import elements, shape


def whole(draft: Draft, name: str) -> None:
    """Generate the sum, mean, maximum or norm of all elements, in two stages."""
    rng = draft.rng
    dims = shape(draft, elements(rng))
    x = draft.input("x", dims, is_first=True)
    spelt = {
        "sum_all": ("torch.sum({x})", "{x}.sum()"),
        "mean_all": ("torch.mean({x})", "{x}.mean()"),
        "max_all": ("torch.max({x})", "{x}.max()"),
        "norm_all": ("torch.norm({x})", "{x}.norm()", 'torch.norm({x}, p="fro")'),
    }
    draft.steps.append(rng.choice(spelt[name]))
    draft.op(
        name,
        {
            "sum_all": "the sum of all elements",
            "mean_all": "the mean of all elements",
            "max_all": "the largest element",
            "norm_all": "the Frobenius norm",
        }[name],
    )
    partial(
        draft,
        x,
        {"sum_all": "x", "mean_all": "x", "norm_all": "x * x", "max_all": "x"}[name],
        [],
        largest=name == "max_all",
    )
    part = draft.value
    draft.result = {
        "sum_all": f"{part}.sum()",
        "mean_all": f"{part}.sum() / {x}.numel()",
        "norm_all": f"{part}.sum().sqrt()",
        "max_all": f"{part}.max()",
    }[name]


def partial(
    draft: Draft,
    x: str,
    term: str,
    pointers: list[tuple[str, str]],
    *,
    lines: list[str] | None = None,
    largest: bool = False,
) -> Kernel:
    """Open a kernel in which each program stores the sum of one block. ``forward`` adds these sums."""
    kernel = flat_kernel(draft, "partial_sum" if not largest else "partial_max", pointers)
    kernel.is_flat = False
    kernel.blocks = [("BLOCK", "4096")]
    kernel.grid = "(triton.cdiv(n, 4096),)"
    other = 'float("-inf")' if largest else "0.0"
    kernel.head[-1] = f"x = tl.load(x_ptr + i, mask=mask, other={other})"
    kernel.head += lines or []
    masked = term if term == "x" else f"tl.where(mask, {term}, 0.0)"
    kernel.tail = [f"tl.store(out_ptr + tl.program_id(0), tl.{'max' if largest else 'sum'}({masked}, 0))"]
    kernel.setup = [
        f"n = {x}.numel()",
        f"{kernel.out} = torch.empty(triton.cdiv(n, 4096), device={x}.device, dtype={x}.dtype)",
    ]
    what = "maximum" if largest else "sum"
    kernel.thought = f"each program stores the {what} of a block, and the partial results are combined at the end"
    return kernel


def frobenius(draft: Draft) -> None:
    """Generate the tensor divided by the norm of all its elements."""
    rng = draft.rng
    dims = shape(draft, elements(rng))
    x = draft.input("x", dims, is_first=True)
    draft.steps.append(
        rng.choice(
            (
                '{x} / torch.norm({x}, p="fro")',
                "{x} / torch.norm({x})",
                "{x} / {x}.norm()",
                "{x} / torch.sqrt(torch.sum({x} ** 2))",
            )
        )
    )
    draft.op("frobenius_normalize", "division by the Frobenius norm")
    partial(draft, x, "x * x", [])
    part = draft.value
    draft.closing.append((1, f"norm = {part}.sum().sqrt()"))
    draft.value = x
    kernel = flat_kernel(draft, "divide", [("norm_ptr", "norm")])
    kernel.steps.append("x = x / tl.load(norm_ptr)")
    kernel.thought = "each program divides a block by the norm"

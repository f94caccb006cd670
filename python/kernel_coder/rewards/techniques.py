"""A small bonus for optimisation techniques in the source of a kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from kernel_coder.ops import parse_response
from kernel_coder.rewards.completions import Completion, completion_text
from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.registry import register_reward
from kernel_coder.rewards.verdicts import Verdicts, scores
from kernel_coder.tasks.task import parse

TRITON = ("autotune", "block_pointers", "cache_hints", "pipelining", "persistent", "tensor_cores")
CUDA = {
    "async_copies": r"\bcp\.async\b|\bmemcpy_async\b|__pipeline_memcpy_async",
    "shared_memory": r"\b__shared__\b",
    "tensor_cores": r"\bwmma::|\bmma\.sync\b|\bwgmma\.",
    "vector_loads": r"\b(?:float|int|uint|double)[24]\b|\b__(?:half|nv_bfloat16)2\b",
    "warp_shuffles": r"\b__shfl_\w*sync\b|\b__reduce_\w+_sync\b",
}
TECHNIQUES = tuple(sorted({*TRITON, *CUDA}))
"""The known techniques. In Triton kernels: ``@triton.autotune``, block pointers or tensor descriptors, eviction
policies and cache modifiers, ``num_stages``, ``tl.num_programs``, ``tl.dot``. In CUDA kernels: matches of the patterns
above."""


def _check(known: Sequence[str], count: int) -> None:
    for name in known:
        if name not in TECHNIQUES:
            raise RewardError(f"known must name techniques among {', '.join(TECHNIQUES)}; got {name!r}")
    if not known or count < 1:
        raise RewardError(f"known must name a technique and count be at least 1; got {list(known)} and {count}")


@register_reward("techniques", check=_check)
def techniques_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    *,
    verdict: Verdicts,
    known: Annotated[Sequence[str], Field(description="techniques that count")] = TECHNIQUES,
    count: Annotated[int, Field(description="number of techniques that earn the full reward")] = 2,
    **columns: Any,
) -> list[float | None]:
    """Return ``min(techniques found, count) / count`` for a correct candidate, 0 for any other.

    Only kernels that the answer launches count, not those that it only defines. The reward reads the source, so a model
    can game it: give it a small weight beside a measured speedup. The idea is KernelTune's.

    Args:
        prompts: not used.
        completions: texts or conversations.
        verdict: the verdicts.
        known: the techniques that count.
        count: number of techniques that earn the full reward.
        columns: not used.

    Returns:
        A number from 0 to 1 for each completion; None if it was not judged.

    Raises:
        RewardError: a technique is unknown, ``known`` is empty, or ``count`` is below 1.

    >>> from kernel_coder.judge import example_verdict
    >>> code = '''
    ... @triton.jit
    ... def product(a_ptr, b_ptr, out_ptr):
    ...     a = tl.load(a_ptr, eviction_policy="evict_last")
    ...     tl.store(out_ptr, tl.dot(a, tl.load(b_ptr)))
    ... class ModelNew:
    ...     def forward(self, a, b):
    ...         product[(1,)](a, b, a)
    ... '''
    >>> sorted(techniques_in(code))
    ['cache_hints', 'tensor_cores']
    >>> techniques_reward(["?"], [code], verdict=[example_verdict("correct")])
    [1.0]
    """
    _check(known, count)
    correct = scores("techniques", completions, verdict, lambda one: float(one.correct))
    return [
        min(len(techniques_in(_code(text)) & set(known)), count) / count if worth else worth
        for text, worth in zip(completions, correct, strict=True)
    ]


def _code(completion: Completion) -> str:
    text = completion_text(completion)
    return parse_response(text).code or text


def techniques_in(code: str) -> set[str]:
    """Return the techniques in the Triton kernels that ``code`` launches and in its CUDA sources."""
    tree = parse(code)
    if isinstance(tree, str):
        return set()
    found: set[str] = set()
    launched = _launched(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in launched and _is_kernel(node):
            found |= set(_of_kernel(node))
            found |= {"pipelining"} if any(_has(launch, "num_stages") for launch in launched[node.name]) else set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            text = re.sub(r"//[^\n]*|/\*.*?\*/", "", node.value, flags=re.DOTALL)
            found |= {name for name, pattern in CUDA.items() if re.search(pattern, text)}
    return found


def _launched(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """Calls of the form ``kernel[grid](...)``, by the kernel's name."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
        ):
            calls.setdefault(node.func.value.id, []).append(node)
    return calls


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(one).startswith(("triton.jit", "jit")) for one in node.decorator_list)


def _of_kernel(node: ast.FunctionDef) -> Iterator[str]:
    if any(ast.unparse(one).startswith(("triton.autotune", "autotune")) for one in node.decorator_list):
        yield "autotune"
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in ("dot", "dot_scaled"):
            yield "tensor_cores"
        if name in ("make_block_ptr", "make_tensor_descriptor"):
            yield "block_pointers"
        if name in ("load", "store") and (_has(call, "eviction_policy") or _has(call, "cache_modifier")):
            yield "cache_hints"
        if name == "range" and _has(call, "num_stages"):
            yield "pipelining"
        if name == "num_programs":
            yield "persistent"


def _has(call: ast.Call, keyword: str) -> bool:
    return any(one.arg == keyword for one in call.keywords)

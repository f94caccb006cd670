"""Modules in the style of public repositories, with Triton solutions that are correct at any size.

Level 1 is one operation alone, level 2 two or three operations, level 3 four to six. Each task has a small twin, the
same module with other constants, which Triton's interpreter can check in milliseconds; the same solution serves both,
because it contains no size.

An operation kind is a function that fills a :class:`~.draft.Draft`; :data:`KINDS` lists them by group.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository import (
    convolutions,
    elementwise,
    norms,
    others,
    pooling,
    products,
    rows,
    whole,
)
from kernel_coder.tasks.generator.repository.calls import spell_calls
from kernel_coder.tasks.generator.repository.chains import chain
from kernel_coder.tasks.generator.repository.draft import Draft
from kernel_coder.tasks.generator.repository.names import renamed
from kernel_coder.tasks.generator.repository.unused import add_unused
from kernel_coder.tasks.generator.repository.writer import reference
from kernel_coder.tasks.generator.sketch import Sketch

Kind = Callable[[Draft], object]

KINDS: dict[str, dict[str, Kind]] = {
    "products": {
        "matmul": products.matmul,
        "matmul_square": partial(products.matmul, square=True),
        "matmul_tall": partial(products.matmul, kind="tall"),
        "matmul_large_k": partial(products.matmul, kind="deep"),
        "matmul_at": partial(products.matmul, left=True),
        "matmul_bt": partial(products.matmul, right=True),
        "matmul_at_bt": partial(products.matmul, left=True, right=True),
        "bmm": products.batched,
        "bmm_bt": partial(products.batched, right=True),
        "matmul_3d": partial(products.tensor_matrix, ndim=3),
        "matmul_4d": partial(products.tensor_matrix, ndim=4),
        "matvec": products.matvec,
        "matmul_diagonal": products.diagonal,
        "matmul_upper": partial(products.triangular, upper=True),
        "matmul_lower": partial(products.triangular, upper=False),
        "matmul_symmetric": products.symmetric,
        "outer": products.outer,
        "matrix_scalar": products.matrix_scalar,
    },
    "activations": {
        each.name: partial(elementwise.alone, name=each.name)
        for each in (*elementwise.ACTIVATIONS, *elementwise.ARITHMETIC)
    },
    "rows": {name: partial(rows.along, name=name) for name in (*rows.ALL_REDUCTIONS, *rows.RESCALINGS)},
    "scans": {name: partial(rows.along, name=name) for name in rows.SCANS},
    "whole": {
        **{name: partial(whole.whole, name=name) for name in ("sum_all", "mean_all", "max_all", "norm_all")},
        "frobenius_normalize": whole.frobenius,
    },
    "norms": {
        "layer_norm": norms.layer_norm,
        "rms_norm": norms.rms_norm,
        "group_norm": norms.group_norm,
        "instance_norm": norms.instance_norm,
        "batch_norm": norms.batch_norm,
    },
    "pooling": {
        f"{kind}_pool{ndim}d": partial(pooling.pool, ndim=ndim, kind=kind)
        for kind in ("max", "avg")
        for ndim in (1, 2, 3)
    },
    "convolutions": {
        **{
            f"conv{ndim}d_{style}": partial(convolutions.convolution, ndim=ndim, style=style)
            for ndim in (1, 2, 3)
            for style in ("plain", "asymmetric", "strided", "dilated", "grouped", "depthwise", "pointwise")
            if (ndim, style) != (1, "asymmetric")
        },
        "depthwise_separable": convolutions.separable,
    },
    "transposed": {
        f"convtranspose{ndim}d_{style}": partial(convolutions.convolution, ndim=ndim, style=style, transposed=True)
        for ndim in (1, 2, 3)
        for style in ("plain", "asymmetric", "strided", "dilated", "grouped")
        if (ndim, style) != (1, "asymmetric")
    },
    "losses": {
        **{name: partial(others.loss, name=name) for name in others.LOSSES},
        "cross_entropy": others.cross_entropy,
        "triplet_loss": others.triplet,
        "cosine_loss": partial(others.cosine, is_loss=True),
        "cosine_similarity": partial(others.cosine, is_loss=False),
    },
    "attention": {"attention": others.attention, "causal_attention": partial(others.attention, causal=True)},
    "indexing": {"embedding": others.embedding, "glu": others.glu},
}
"""Operation kinds by group."""

GROUP_FREQUENCIES = {
    "products": 22,
    "activations": 30,
    "rows": 17,
    "scans": 6,
    "whole": 4,
    "norms": 10,
    "pooling": 8,
    "convolutions": 20,
    "transposed": 16,
    "losses": 12,
    "attention": 2,
    "indexing": 2,
}
"""Frequency of each group at level 1. Within a group kinds are equally frequent, except those of :data:`WEIGHTS`."""

WEIGHTS = {
    **dict.fromkeys(("relu", "sigmoid", "selu", "gelu", "softplus", "softsign", "swish", "elu", "hardtanh"), 1.6),
    **dict.fromkeys(("max", "min", "matmul_square"), 2.2),
    **dict.fromkeys(("conv1d_plain", "conv2d_asymmetric"), 1.6),
    **dict.fromkeys(("conv2d_plain", "conv3d_plain"), 2.4),  # most have `groups`, which is not to look like depthwise
    **dict.fromkeys(("sum", "mean", "cross_entropy", "triplet_loss", "matmul_3d", "matmul_4d"), 1.4),
    **{
        "argmax": 1.6,
        "tanh": 2.0,
        "leaky_relu": 1.6,
        "exp": 1.3,
        "log_softmax": 1.6,
        "matmul": 1.8,
        "matmul_tall": 1.4,
    },
    **dict.fromkeys(("hinge_loss", "smooth_l1_loss", "mse_loss", "l2_normalize", "kl_div", "cumsum", "cumprod"), 1.8),
}
"""How often a kind is drawn within its group; 1 for kinds that are not listed. For some kinds the contamination check
drops many modules, because they equal a KernelBench problem. These kinds are drawn more often."""

OPERATIONS = frozenset(name for group in KINDS.values() for name in group)


@dataclass(frozen=True, slots=True)
class Made:
    """A generated module in its two sizes, and its solution."""

    entry_point: str
    reference: str
    small_reference: str
    solution: str
    thinking: str
    composition: tuple[str, ...]


def make(rng: Random, level: int, kind: str | None = None) -> Made:
    """Generate a module.

    Args:
        rng: source of all choices.
        level: 0 and 1: one operation; 2: two or three; 3 and 4: four to six.
        kind: one of :data:`OPERATIONS`, for level 1; None: drawn.

    Raises:
        UnsuitableError: this draw gave no module; draw again.

    >>> made = make(Random(0), 1, "softmax")
    >>> made.composition, "class ModelNew" in made.solution
    (('softmax',), True)
    """
    draft = Draft(rng, text_seed=rng.getrandbits(60))
    if level <= 1 or kind is not None:
        group = rng.choices(list(GROUP_FREQUENCIES), weights=list(GROUP_FREQUENCIES.values()))[0]
        names = list(KINDS[group])
        chosen = kind or rng.choices(names, weights=[WEIGHTS.get(name, 1.0) for name in names])[0]
        function = next(kinds[chosen] for kinds in KINDS.values() if chosen in kinds)
        function(draft)
    elif level == 2 and rng.random() < 0.15:
        elementwise.several(draft, rng.choice((2, 3)))
    elif level == 2 and rng.random() < 0.1:
        rows.along(draft, rng.choice([*rows.REDUCTIONS, "logsumexp"]), prologue=rng.choice(list(elementwise.TABLE)))
    else:
        chain(draft, rng.choice((2, 3)) if level == 2 else rng.choice((4, 4, 5, 6)))
    add_unused(draft)
    spell_calls(draft.init, draft.steps, rng)
    draft.entry_point = _class_name(draft)
    texts = renamed((reference(draft, 0), reference(draft, 1), draft.solution()), rng)
    made = Made(draft.entry_point, *texts, draft.thinking(), tuple(draft.ops))
    if len(made.solution) > MAX_SOLUTION_CHARACTERS:
        raise UnsuitableError(f"the solution has {len(made.solution)} characters")
    return made


def repository(s: Sketch) -> None:
    """Generate the family ``repository`` of the generator: a whole module, with its small twin and its sentence of
    thinking."""
    made = make(s.rng, s.level)
    s.ops, s.texts, s.entry_point = list(made.composition), (made.reference, made.solution), made.entry_point
    s.more = {"thinking": made.thinking, "small_python_code": made.small_reference}


MAX_SOLUTION_CHARACTERS = 5200
"""Upper limit for a solution, in characters. Longer ones exceed about 2,000 tokens, which a small model rarely writes
without a mistake."""


def _class_name(draft: Draft) -> str:
    rng = draft.rng
    if rng.random() < 0.5:
        return "Model"
    words = [word.title() for name in draft.ops[:2] for word in re.split(r"_", name)]
    name = "".join(words[:3]) + rng.choice(("", "Module", "Layer", "Block", "Net", "Op"))
    return f"{name}Module" if name in ("Model", "ModelNew") or not name.isidentifier() else name


__all__ = ["KINDS", "OPERATIONS", "SHARES", "Draft", "Made", "UnsuitableError", "make", "repository"]

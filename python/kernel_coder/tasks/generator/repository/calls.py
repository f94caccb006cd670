"""Spells the calls of layers in different ways: arguments by position or by name, ``nn`` or ``torch.nn``."""

from __future__ import annotations

import ast
import re
from random import Random

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding")
_ARGUMENTS = {
    "Conv": (*_CONVOLUTION, "dilation", "groups", "bias"),
    "ConvTranspose": (*_CONVOLUTION, "output_padding", "groups", "bias", "dilation"),
    "BatchNorm": ("num_features", "eps", "momentum"),
    "InstanceNorm": ("num_features", "eps", "momentum"),
    "GroupNorm": ("num_groups", "num_channels", "eps"),
    "LayerNorm": ("normalized_shape", "eps"),
    "MaxPool": ("kernel_size", "stride", "padding", "dilation"),
    "AvgPool": ("kernel_size", "stride", "padding"),
    "Linear": ("in_features", "out_features", "bias"),
    "Embedding": ("num_embeddings", "embedding_dim"),
}
"""The first arguments of layers, in PyTorch's order."""
_NORMS = ("BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm")
_LAYER = re.compile(r"self\.\w+ = nn\.([A-Za-z]+?)(?:[123]d)?\(")


def respelt(line: str, rng: Random) -> str:
    """Return a line of ``__init__`` with more of its layer's arguments by name, or more of them by position.

    >>> respelt("self.norm = nn.GroupNorm(groups, channels)", Random(1))
    'self.norm = nn.GroupNorm(num_groups=groups, num_channels=channels)'
    """
    found = _LAYER.match(line)
    if not found or found[1] not in _ARGUMENTS:
        return line
    names, share = _ARGUMENTS[found[1]], 0.5 if found[1] in _NORMS else 0.15
    draw = rng.random()
    if share <= draw < 0.9:
        return line
    assigned = ast.parse(line).body[0]
    assert isinstance(assigned, ast.Assign)
    call = assigned.value
    assert isinstance(call, ast.Call)
    if draw < share:
        call.keywords = [*map(ast.keyword, names, call.args), *call.keywords]
        call.args = []
    else:
        while call.keywords and len(call.args) < len(names) and call.keywords[0].arg == names[len(call.args)]:
            call.args.append(call.keywords.pop(0).value)
    return ast.unparse(assigned)


def spell_calls(init: list[tuple[str, bool, bool]], steps: list[str], rng: Random) -> None:
    """Respell the layers of ``__init__``, which reference and solution share, and the calls of ``forward``."""
    is_long = rng.random() < 0.06
    for at, (line, is_shown, is_kept) in enumerate(init):
        line = respelt(line, rng)
        init[at] = (re.sub(r"(?<![\w.])nn\.", "torch.nn.", line) if is_long else line, is_shown, is_kept)
    if rng.random() < 0.4:
        steps[:] = [re.sub(r"\bF\.(?=[a-z])", "torch.nn.functional.", step) for step in steps]

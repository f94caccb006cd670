"""Chooses the rollout engine for a model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from kernel_coder.rollout.engine import RolloutEngine
from kernel_coder.rollout.static_engine import StaticEngine, supported
from kernel_coder.rollout.transformers_engine import TransformersEngine

EngineKind = Literal["auto", "static", "transformers"]


def make_engine(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    kind: EngineKind = "auto",
    *,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
) -> RolloutEngine:
    """Makes the engine for a model.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        kind: ``static``: :class:`StaticEngine`; ``transformers``: :class:`TransformersEngine`; ``auto``: ``static`` for
            a supported model on a GPU, otherwise ``transformers``.
        batch_size: number of answers sampled at once; None: the engine chooses.
        dtype: dtype of the computation; only ``static`` can use one that differs from the weights'.
    """
    if kind == "static" or (kind == "auto" and supported(model)):
        return StaticEngine(model, tokenizer, batch_size=batch_size, dtype=dtype)
    return TransformersEngine(model, tokenizer, batch_size=batch_size)

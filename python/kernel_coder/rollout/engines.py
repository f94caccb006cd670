"""Chooses the rollout engine for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from kernel_coder.rollout.engine import RolloutEngine
from kernel_coder.rollout.static_engine import StaticEngine, supported
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.rollout.vllm.engine import VllmEngine

EngineKind = Literal["auto", "static", "transformers", "vllm"]


def make_engine(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    kind: EngineKind = "auto",
    *,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    vllm: VllmConfig | None = None,
    log: Path | None = None,
) -> RolloutEngine:
    """Makes the engine for a model.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        kind: ``static``: :class:`StaticEngine`; ``transformers``: :class:`TransformersEngine`; ``vllm``:
            :class:`~kernel_coder.rollout.vllm.engine.VllmEngine`; ``auto``: ``static`` for a supported model on a GPU,
            otherwise ``transformers``.
        batch_size: number of answers sampled at once; None: the engine chooses.
        dtype: dtype of the computation; only ``static`` and ``vllm`` can use one that differs from the weights'.
        vllm: the server of engine ``vllm``; None: defaults.
        log: file for the output of a server that engine ``vllm`` starts; None: a temporary file.
    """
    if kind == "vllm":
        return VllmEngine(model, tokenizer, vllm or VllmConfig(), dtype=dtype, log=log)
    if kind == "static" or (kind == "auto" and supported(model)):
        return StaticEngine(model, tokenizer, batch_size=batch_size, dtype=dtype)
    return TransformersEngine(model, tokenizer, batch_size=batch_size)

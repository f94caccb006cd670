"""Makes decoders with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def random_model(
    shape: Any, device: str, *, kind: str = "llama", dtype: torch.dtype = torch.float32, positions: int, **others: Any
) -> Any:
    """A decoder with tied embeddings and seed 0; `shape` has vocab, hidden, intermediate, layers, heads, key_heads."""
    make_config, make_model = KINDS[kind]
    config = make_config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        **others,
    )
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make_model(config)
    finally:
        torch.set_default_dtype(default)

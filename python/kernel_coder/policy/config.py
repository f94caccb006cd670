"""Which model is trained, and how it is loaded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_coder.run.config import Section

PLAIN = "plain"
"""Value of ``chat_template`` for prompts without a chat template."""


class ModelConfig(Section):
    """Which model is trained, and how it is loaded."""

    name_or_path: str = Field(
        default="tiny",
        description="the model: a Hugging Face hub id, a local folder, nano (the packaged model) or tiny (two layers "
        "with random weights, for tests)",
    )
    revision: str | None = Field(
        default=None, description="commit, branch or tag of a hub model; none: its default branch"
    )
    gguf_file: str | None = Field(default=None, description="load the weights from this GGUF file in name_or_path")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="float32", description="data type of the weights")
    bf16: bool = Field(
        default=False, description="compute in bfloat16 (autocast) while the weights stay in dtype; false: in dtype"
    )
    device: str = Field(
        default="auto",
        description="device of the model: cpu, cuda, cuda:N or auto (a GPU if there is one and the ops are built for "
        "it)",
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        default="sdpa",
        description="attention kernel of transformers; only sdpa computes a prompt once for all its answers",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        default="auto",
        description="recompute activations in the backward pass to save memory: true: of all layers, false: of "
        "none, auto: of as few layers as the GPU's free memory requires",
    )
    chat_template: str | None = Field(
        default=None,
        description="file with a Jinja chat template, or plain for prompts without one; none: the tokenizer's own",
    )
    use_peft: bool = Field(default=False, description="train LoRA adapters; false: train all weights")
    lora_r: int = Field(default=16, ge=1, description="rank of the LoRA adapters")
    lora_alpha: int = Field(default=32, ge=1, description="the adapters' output is scaled by lora_alpha / lora_r")
    lora_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout before the adapters, in training")
    lora_target_modules: list[str] | str = Field(
        default="all-linear", description="modules that get an adapter; all-linear: every linear layer but the head"
    )

    @property
    def plain(self) -> str | None:
        """``plain`` if prompts have no chat template, else None; an argument of ``prompts.encode_prompt``."""
        return PLAIN if self.chat_template == PLAIN else None

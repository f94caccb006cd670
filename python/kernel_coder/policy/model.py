"""Loading the model that is trained, and the two things the loss needs from it: hidden states and the head."""

from __future__ import annotations

import copy
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from kernel_coder import _core, models
from kernel_coder.policy.recomputation import Recomputation, can_recompute
from kernel_coder.rollout.decoder import with_dtype
from kernel_coder.run.errors import UsageError
from kernel_coder.train.config import ModelConfig

TINY = "tiny"
NANO = "nano"
NANO_FOLDER = Path(models.__file__).parent / "kernel-coder-nano"
"""Where the packaged model lies, if this installation has it."""

PLAIN = "plain"
#: The op that training cannot do without: a GPU is of use only if it runs there.
LOSS_OP = "linear_grpo_loss"


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer as ``ops.linear_grpo_loss`` takes it: logits = softcap(logit_scale (hidden weight^T + bias))."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    logit_scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The trained model with its tokenizer.

    Attributes:
        model: a PEFT model if LoRA adapters are trained.
        tokenizer: of the model.
        is_peft: see above.
        bf16: compute in bfloat16, whatever the weights' dtype.
        can_pack: sequences may lie one behind the other in a row; see :mod:`kernel_coder.policy.packing`.
        can_share: they may share a prompt there.
        recomputation: decides which layers are recomputed in the backward pass; None: that is fixed.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    is_peft: bool = False
    bf16: bool = False
    can_pack: bool = False
    can_share: bool = False
    recomputation: Recomputation | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def context_length(self) -> int | None:
        return getattr(self.model.config, "max_position_embeddings", None)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @contextmanager
    def as_reference(self) -> Iterator[nn.Module]:
        """The model without its adapters: the initial policy, at no cost in memory."""
        with self.model.disable_adapter():  # type: ignore[operator]
            yield self.model


def load_policy(config: ModelConfig, *, resume_from: Path | None = None) -> Policy:
    """The model of the config; with ``resume_from``, a checkpoint's weights in its place."""
    config = _unpacked(config)
    device = resolve_device(config.device)
    dtype = getattr(torch, config.dtype)
    source = config
    if resume_from is not None and not config.use_peft:
        source = config.model_copy(update={"name_or_path": str(resume_from), "gguf_file": None, "revision": None})
    tokenizer = load_tokenizer(config)
    model = with_dtype(_load_model(source, len(tokenizer)), dtype).to(device)
    own_memory(model)
    if config.gradient_checkpointing is True:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    if config.use_peft:
        model = _with_lora(model, config, resume_from)
        own_memory(model)
    chosen = config.gradient_checkpointing == "auto" and can_recompute(model)
    recomputation = Recomputation(model, bf16=config.bf16) if chosen else None
    return Policy(model.eval(), tokenizer, config.use_peft, config.bf16, recomputation=recomputation)


def _unpacked(config: ModelConfig) -> ModelConfig:
    """``nano`` is the folder that comes with Kernel Coder."""
    if config.name_or_path != NANO:
        return config
    if not NANO_FOLDER.is_dir():
        raise UsageError("model.name_or_path is nano, but this installation comes without that model; see docs/sft.md")
    return config.model_copy(update={"name_or_path": str(NANO_FOLDER)})


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase
    if config.name_or_path == TINY:
        from kernel_coder.models.tiny import tiny_tokenizer

        tokenizer = tiny_tokenizer()
    else:
        _check_exists(config)
        try:
            tokenizer = AutoTokenizer.from_pretrained(config.name_or_path, **_hub_arguments(config))
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"no tokenizer can be loaded from {config.name_or_path}: {_first_sentence(error)}"
            ) from error
    if config.chat_template not in (None, PLAIN):
        try:
            tokenizer.chat_template = Path(str(config.chat_template)).read_text(encoding="utf-8")
        except OSError:
            raise UsageError(f"model.chat_template {config.chat_template} cannot be read") from None
    if tokenizer.chat_template is None and config.chat_template != PLAIN:
        raise UsageError(
            f"the tokenizer of {config.name_or_path} has no chat template, so it cannot be asked anything: "
            "train an instruct model, or set model.chat_template to a Jinja file or to plain"
        )
    if tokenizer.eos_token_id is None:
        raise UsageError(f"the tokenizer of {config.name_or_path} has no end-of-sequence token, so no answer would end")
    return tokenizer


def load_reference(policy: Policy) -> Policy | None:
    """The frozen initial model for the KL term; None for LoRA, where ``policy.as_reference`` is that model."""
    if policy.is_peft:
        return None
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return replace(policy, model=model, recomputation=None)


def _load_model(config: ModelConfig, vocabulary: int) -> nn.Module:
    if config.name_or_path == TINY:
        from kernel_coder.models.tiny import tiny_model

        return tiny_model(vocabulary)
    _check_exists(config)
    # The progress bar of a GGUF file has no switch of its own.
    bar = nullcontext() if config.gguf_file is None or sys.stderr.isatty() else redirect_stderr(io.StringIO())
    try:
        with bar:
            model = AutoModelForCausalLM.from_pretrained(
                config.name_or_path,
                dtype=getattr(torch, config.dtype),
                attn_implementation=config.attn_implementation,
                **_hub_arguments(config),
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"no model can be loaded from {config.name_or_path}: {_first_sentence(error)}") from error
    if config.gguf_file is not None:
        # The weights are dequantised by now; what is left of the quantisation would only forbid saving them.
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(model.config, name):
                delattr(model.config, name)
        model.hf_quantizer, model.is_quantized = None, False  # type: ignore[assignment]
    return model


def own_memory(model: nn.Module) -> None:
    """Moves every weight out of the file it may be mapped from.

    The file can then go, and every weight starts at torch's alignment: a matrix product may round differently at
    another one, and a resumed run would not have the same bits.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _check_exists(config: ModelConfig) -> None:
    name = config.name_or_path
    folder = Path(name).expanduser()
    if not folder.exists() and not re.fullmatch(r"[\w.-]+/[\w.-]+|[\w-]+", name):
        raise UsageError(f"model.name_or_path {name} is neither a folder nor a hub id such as owner/name")
    if not folder.exists() and "/" not in name:
        raise UsageError(
            f"model.name_or_path {name} does not exist: it is not a folder, not owner/name, and not {TINY}"
        )
    if config.gguf_file is not None and folder.is_dir() and not (folder / config.gguf_file).is_file():
        raise UsageError(f"model.gguf_file {config.gguf_file} does not exist in {name}")


def _hub_arguments(config: ModelConfig) -> dict[str, Any]:
    given = {"revision": config.revision, "gguf_file": config.gguf_file}
    return {name: value for name, value in given.items() if value is not None}


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).split(". ")[0]


def _with_lora(model: nn.Module, config: ModelConfig, resume_from: Path | None) -> nn.Module:
    try:
        import peft
    except ImportError:
        raise UsageError("model.use_peft needs the peft package: pip install peft") from None
    from kernel_coder.policy.adapters import quicken

    if resume_from is not None:
        adapted: nn.Module = peft.PeftModel.from_pretrained(model, str(resume_from), is_trainable=True)
        quicken(adapted)
        return adapted
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.lora_target_modules,
    )
    adapted = peft.get_peft_model(model, settings)
    quicken(adapted)
    return adapted


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and _core.has_cuda_kernel(LOSS_OP) else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"model.device must be auto, cpu, cuda or cuda:N; got {name}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"model.device is {name}, but this torch ({torch.__version__}) sees no GPU")
    if device.type == "cuda" and not _core.has_cuda_kernel(LOSS_OP):
        raise UsageError(
            f"model.device is {name}, but {LOSS_OP} has no CUDA kernel in this build; set model.device: cpu"
        )
    return device


def causal_lm(model: nn.Module) -> Any:
    """The transformers model, without PEFT's wrapper around it (the adapters stay in its layers)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def head_of(model: nn.Module) -> Head | None:
    """The head, if it is a plain matrix with what ``ops.linear_grpo_loss`` can express; None otherwise."""
    base = causal_lm(model)
    layer = base.get_output_embeddings()
    if type(layer) is not nn.Linear or not hasattr(base, "get_decoder"):
        return None
    config = base.config
    # Cohere multiplies by logit_scale, Granite divides by logits_scaling; any other name is one we do not know.
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    if softcap is not None and scale != 1.0:
        return None
    return Head(layer.weight, layer.bias, scale, None if softcap is None else float(softcap))

"""The policy, the model that is trained, and how it is loaded."""

from __future__ import annotations

import copy
import difflib
import io
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from kernel_coder import _core
from kernel_coder.policy.config import PLAIN, ModelConfig
from kernel_coder.policy.defaults import PACKAGED_FOLDERS, write_defaults
from kernel_coder.policy.parts import causal_lm, with_dtype
from kernel_coder.policy.recomputation import Recomputation, can_recompute
from kernel_coder.policy.sharding import Root, copy_whole, shard, sum_gradients
from kernel_coder.run import devices, distributed
from kernel_coder.run.config import ParallelConfig
from kernel_coder.run.errors import UsageError
from kernel_coder.run.recipe import recipe_names
from kernel_coder.run.shards import holds_shards, whole_on_first

T = TypeVar("T")

TINY = "tiny"
NANO = "nano"
NANO_FOLDER = PACKAGED_FOLDERS[NANO]
"""Folder of the packaged model. It exists only if this installation includes the model."""

HUB = "huggingface.co"
HUB_TIMEOUT_S = 5.0
"""Upper limit of the wait for a connection to the hub, in seconds. The hub's own client would wait almost a minute."""

LOSS_OP = "linear_grpo_loss"
"""Name of the op that every update uses. Training on a GPU requires that this op has a CUDA kernel."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that is trained, with its tokenizer.

    Attributes:
        model: the model; a PEFT model if LoRA adapters are trained.
        tokenizer: the model's tokenizer.
        is_peft: whether LoRA adapters are trained.
        bf16: compute in bfloat16, whatever the weights' dtype.
        can_pack: several sequences may share a row; see :mod:`kernel_coder.policy.packing`.
        can_share: they may also share a prompt in that row.
        defaults: the model's default prompt settings, which :meth:`save_pretrained` writes into its folder.
        recomputation: decides before each pass which layers are recomputed in the backward pass; None: this is fixed.
        root: computes with the weights if they are divided between ranks; None: this rank has all weights.
        parallel: how ranks exchange weights and gradients.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    is_peft: bool = False
    bf16: bool = False
    can_pack: bool = False
    can_share: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    recomputation: Recomputation | None = None
    root: Root | None = None
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def context_length(self) -> int | None:
        """Tokens that a sequence may have; None: the model states no limit."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that training changes, by name: all of them, or the adapters."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def whole(self) -> dict[str, Tensor]:
        """Return the parameters that training changes; if they are divided, whole copies on the CPU of rank 0 only.

        All ranks must then call this at the same time.
        """
        return dict(self.trainable()) if self.root is None else whole_on_first(self.trainable())

    def save_pretrained(self, folder: Path) -> None:
        """Writes the weights (of LoRA only the adapters), the model's config, the tokenizer and the defaults.

        Rank 0 writes. If the weights are divided, all ranks must call this at the same time.
        """
        weights: dict[str, Any] = {}
        if self.root is not None:
            state = self.model.state_dict()
            kept = self.trainable() if self.is_peft else state
            weights = {"state_dict": whole_on_first({name: state[name] for name in kept})}
        if distributed.world().is_first:
            self.model.save_pretrained(folder, **weights)  # type: ignore[operator]
            self.tokenizer.save_pretrained(folder)
            write_defaults(folder, self.defaults)

    def save_description(self, folder: Path) -> None:
        """Writes the model's config, the tokenizer and the defaults, without weights."""
        causal_lm(self.model).config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_defaults(folder, self.defaults)

    def compute(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return ``function(model, ...)``, called with all weights present. The model may compute only in such a
        function.

        If the weights are divided, all ranks must call this at the same time. The backward pass frees the root's
        gathered weights; without gradients that is done here. As long as they are gathered, :meth:`trainable` would
        return them instead of this rank's parts.
        """
        if self.root is None:
            return function(self.model, *arguments, **named)
        found: T = self.root(function, *arguments, **named)
        if not torch.is_grad_enabled():
            self.root.reshard()  # type: ignore[operator]
        return found

    def before_pass(self, tokens: int, *, last: bool = True) -> None:
        """Prepares a forward pass with gradients: chooses the layers to recompute.

        Args:
            tokens: of the pass, padding included.
            last: whether it is the last pass of the update, after which gradients are summed over the ranks.
        """
        if self.recomputation is not None:
            self.recomputation.fit(tokens, self.compute)
        if self.root is not None:
            self.root.set_requires_gradient_sync(last or self.parallel.sync_each_pass)  # type: ignore[operator]

    def after_passes(self) -> None:
        """Sums the gradients of an update over the ranks if each has all weights. FSDP2 has already summed others."""
        if self.root is None:
            dtype = self.parallel.reduce_dtype
            sum_gradients(self.trainable(), None if dtype is None else getattr(torch, dtype))

    def refresh(self, copy: Policy) -> None:
        """Copies the weights that training changes into a whole copy of the model on each rank."""
        copy_whole(self.trainable(), copy.trainable())

    def divided(self, config: ParallelConfig, device: torch.device) -> Policy:
        """Return the policy with its weights divided between the ranks, in place; see
        :mod:`kernel_coder.policy.sharding`."""
        return replace(self, root=shard(self.model, config, device), parallel=config)

    def copied(self, device: torch.device) -> Policy:
        """Return a whole copy of the policy on a device, to sample from while this one is divided."""
        return replace(self, model=copy.deepcopy(self.model).to(device).eval(), recomputation=None)

    @contextmanager
    def as_reference(self) -> Iterator[nn.Module]:
        """Inside this context the model computes without its adapters: as the initial policy, without further
        memory."""
        with self.model.disable_adapter():  # type: ignore[operator]
            yield self.model


def load_policy(config: ModelConfig, *, resume_from: Path | None = None, device: torch.device | None = None) -> Policy:
    """Loads the model and its tokenizer.

    Args:
        config: which model.
        resume_from: a checkpoint whose weights (or adapters) replace those of the config's model.
        device: where to put the weights; None: on the config's device.

    Raises:
        UsageError: the model, its tokenizer or the device cannot be used.
    """
    config = _with_packaged_path(config)
    device = device or resolve_device(config.device)
    dtype = getattr(torch, config.dtype)
    source = config
    if resume_from is not None and holds_shards(resume_from):
        resume_from = None  # its weights come later, see run.checkpoint.start_or_resume
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


def _with_packaged_path(config: ModelConfig) -> ModelConfig:
    """Replaces ``nano`` by the folder of the packaged model."""
    if config.name_or_path != NANO:
        return config
    if not NANO_FOLDER.is_dir():
        raise UsageError("model.name_or_path is nano, but this installation comes without that model; see docs/sft.md")
    return config.model_copy(update={"name_or_path": str(NANO_FOLDER)})


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer. It must have an end-of-sequence token, and a chat template unless ``plain`` is set."""
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
    """Return a frozen copy of the policy as it is now, for the KL term. None for LoRA: use ``policy.as_reference``."""
    if policy.is_peft:
        return None
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return replace(policy, model=model, recomputation=None)


def _load_model(config: ModelConfig, vocabulary: int) -> nn.Module:
    if config.name_or_path == TINY:
        from kernel_coder.models.tiny import tiny_model

        return tiny_model(vocabulary)
    _check_exists(config)
    # transformers has no option to hide the progress bar of a GGUF file.
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
        # The weights were dequantised while loading, but a model that is marked as quantised cannot be saved.
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(model.config, name):
                delattr(model.config, name)
        model.hf_quantizer, model.is_quantized = None, False  # type: ignore[assignment]
    return model


def own_memory(model: nn.Module) -> None:
    """Copies every weight out of the memory-mapped file of a checkpoint.

    So the file can be deleted, and every weight has torch's own memory alignment. The rounding of a matrix product can
    depend on the alignment, so otherwise a resumed run could differ in the last bits.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _check_exists(config: ModelConfig) -> None:
    name = config.name_or_path
    folder = Path(name).expanduser()
    if not folder.exists() and folder.name.startswith("checkpoint-"):
        recipe = folder.parent.name
        command = "sft" if "sft" in recipe else "train"
        known = f": kernel-coder {command} --config {recipe}" if recipe in recipe_names() else ""
        raise UsageError(
            f"model.name_or_path {name} does not exist: run the recipe that makes this checkpoint first{known}"
        )
    if not folder.exists() and not re.fullmatch(r"[\w.-]+/[\w.-]+|[\w-]+", name):
        raise UsageError(f"model.name_or_path {name} is neither a folder nor a hub id such as owner/name")
    if not folder.exists() and "/" not in name:
        close = difflib.get_close_matches(name, (NANO, TINY), n=1, cutoff=0.7)
        raise UsageError(
            f"model.name_or_path {name} does not exist: it is not a folder, not owner/name, and not {NANO} or {TINY}"
            f"{f'; did you mean {close[0]}?' if close else ''}"
        )
    if config.gguf_file is not None and folder.is_dir() and not (folder / config.gguf_file).is_file():
        raise UsageError(f"model.gguf_file {config.gguf_file} does not exist in {name}")
    check_hub(name)


def check_hub(model: str) -> None:
    """Raises UsageError if a model must be downloaded and the hub cannot be reached, for which its own client needs
    almost a minute.

    Local folders, cached models, mirrors and proxies are left to the loader.
    """
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) and not Path(model).exists()
    known = (cache / f"models--{model.replace('/', '--')}").exists()
    if not is_hub_id or known or {"HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "HF_HUB_CACHE"} & set(os.environ):
        return
    try:
        socket.create_connection((HUB, 443), timeout=HUB_TIMEOUT_S).close()
    except OSError as error:
        raise UsageError(
            f"model.name_or_path {model} is not a folder on this machine, and the hub cannot be reached "
            f"({HUB}: {error})"
        ) from None


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
    """Return the device that ``model.device`` names. ``auto`` is a GPU if there is one and the ops are built for it.

    If several processes work on the run, ``auto`` and ``cuda`` mean the GPU with the process's local rank.

    Raises:
        UsageError: there is no such device, or the ops are not built for it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and _core.has_cuda_kernel(LOSS_OP) else "cpu"
        if name == "cpu":
            return torch.device("cpu")
    world = distributed.world()
    if name == "cuda" and not world.is_alone:
        name = f"cuda:{world.local_rank}"
    device = torch.device(devices.resolve_device(name, "model.device"))
    if device.type == "cuda" and not _core.has_cuda_kernel(LOSS_OP):
        raise UsageError(
            f"model.device is {name}, but {LOSS_OP} has no CUDA kernel in this build; set model.device: cpu"
        )
    return device

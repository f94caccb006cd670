"""TRL's GRPOTrainer with this project's loss, from hidden states, without the logits. Written for TRL 1.16.

    trainer = FusedGRPOTrainer(model, reward_funcs=reward, args=GRPOConfig(...), train_dataset=...)

The loss is what TRL computes for the same ``GRPOConfig``; gradients agree to rounding. The gradient is computed in the
forward pass, so there are three products with the head, where TRL needs four, and masked tokens cost nothing.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from kernel_coder.ops import LossOutput, LossSpec, linear_grpo_loss
from kernel_coder.policy.parts import head_of

NOT_SUPPORTED = {
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "off_policy_mask_threshold": None,
    "cast_lm_head_to_fp32": False,
    "use_adaptive_entropy": False,
}
"""Fields of GRPOConfig with the only value that this trainer accepts, because the loss does not support others."""


class FusedGRPOTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose loss is :func:`kernel_coder.ops.linear_grpo_loss`.

    Raises:
        ValueError: the loss does not support a setting of the config, or the model's head; the sentence names it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, only in NOT_SUPPORTED.items():
            if (value := getattr(self.args, name, only)) != only:
                raise ValueError(f"FusedGRPOTrainer needs {name}={only}; got {value}: take TRL's GRPOTrainer")
        if self.aux_loss_enabled:
            raise ValueError("FusedGRPOTrainer has no auxiliary loss of experts: take TRL's GRPOTrainer")
        self.spec = LossSpec.from_trl(self.args)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        if head_of(base) is None:
            raise ValueError(f"the head of {type(base).__name__} is not a linear layer: take TRL's GRPOTrainer")
        _add_policy_loss(base)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        prompt_ids, completion_ids = inputs["prompt_ids"], inputs["completion_ids"]
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        mode = "train" if self.model.training else "eval"
        out: LossOutput = model(
            input_ids=torch.cat([prompt_ids, completion_ids], dim=1),
            attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            policy_loss={
                "ids": completion_ids,
                "advantages": inputs["advantages"],
                "spec": self.spec,
                "temperature": self.temperature,
                "old_logprobs": inputs.get("old_per_token_logps"),
                "ref_logprobs": inputs["ref_per_token_logps"] if self.beta != 0.0 else None,
                "rollout_logprobs": inputs["sampling_per_token_logps"] if self.spec.mismatch != "none" else None,
                "mask": mask.bool(),
                "denominator": self._denominator(inputs, mask, mode),
            },
        )
        self._log_loss(out, inputs, mask, mode)
        return out.loss

    def _denominator(self, inputs: dict[str, Any], mask: Tensor, mode: str) -> Tensor:
        """Return the number by which TRL divides the summed loss, including gradient accumulation."""
        steps = self.current_gradient_accumulation_steps if mode == "train" else 1
        if self.loss_type in ("dapo", "cispo", "vespo"):
            tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
            return tokens * steps / self.args.steps_per_generation if mode == "train" else tokens
        if self.loss_type == "bnpo":
            return mask.sum().clamp(min=1.0) * steps
        return torch.tensor(float(mask.size(0) * steps), device=mask.device)

    @torch.no_grad()
    def _log_loss(self, out: LossOutput, inputs: dict[str, Any], mask: Tensor, mode: str) -> None:
        """Log TRL's metrics of the loss: entropy, KL and the shares of clipped tokens."""
        metrics = self._metrics[mode]

        def mean(values: Tensor) -> float:
            totals = torch.stack([(values * mask).sum(), mask.sum()]).float()
            totals = self.accelerator.reduce(totals, reduction="sum")
            return float(totals[0] / totals[1].clamp(min=1.0))

        assert out.entropy is not None
        assert out.logprobs is not None
        metrics["entropy"].append(mean(out.entropy))
        old, is_token_wise = inputs.get("old_per_token_logps"), self.spec.importance_sampling_level == "token"
        log_ratio = torch.zeros_like(out.logprobs) if old is None else out.logprobs - old
        if not is_token_wise:
            log_ratio = (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1.0)
        ratio = log_ratio.exp()
        if self.beta != 0.0:
            gap = inputs["ref_per_token_logps"] - out.logprobs
            corrected = ratio if self.args.use_bias_correction_kl else 1.0
            metrics["kl"].append(mean((gap.exp() - gap - 1) * corrected))
        if self.spec.surrogate == "clip" and is_token_wise:
            advantages = inputs["advantages"]
            advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
            low = (ratio < 1 - self.epsilon_low) & (advantages < 0)
            high = (ratio > 1 + self.epsilon_high) & (advantages > 0)
            metrics["clip_ratio/low_mean"].append(mean(low.float()))
            metrics["clip_ratio/high_mean"].append(mean(high.float()))
            metrics["clip_ratio/region_mean"].append(mean((low | high).float()))


def _add_policy_loss(model: Any) -> None:
    """Make ``model(..., policy_loss={...})`` return the loss of the last positions.

    The op is called inside the model's forward, where wrappers for several processes have gathered the head's weight.
    """
    original = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *arguments: Any, policy_loss: dict[str, Any] | None = None, **options: Any) -> Any:
        if policy_loss is None:
            return original(*arguments, **options)
        hidden = self.get_decoder()(*arguments, **options, use_cache=False).last_hidden_state
        count = policy_loss["ids"].size(1)
        hidden = hidden[:, -count - 1 : -1]
        head = head_of(self)
        assert head is not None
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
        return linear_grpo_loss(
            hidden.to(dtype),
            head.weight.to(dtype),
            bias=None if head.bias is None else head.bias.to(dtype),
            logit_scale=head.logit_scale,
            softcap=head.softcap,
            **policy_loss,
        )

    model.forward = types.MethodType(forward, model)

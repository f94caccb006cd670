"""LossSpec: the definition of a policy loss as one frozen value."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any

from kernel_coder import _C

#: Names of the metric sums that every form of the loss returns, in order.
LOSS_METRICS: tuple[str, ...] = _C.LOSS_METRICS


class _Packed:
    """A slot for the packed numbers, which are computed from the fields and are no field themselves."""

    __slots__ = ("_packed",)
    _packed: list[float]

    def __new__(cls, *positional: Any, **given: Any) -> Any:
        """Refuse a name that is no field; the error suggests the field or method that was probably meant."""
        known = getattr(cls, "__dataclass_fields__", {})
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
                of_trl = "; LossSpec.from_trl takes TRL's names" if name in _TRL_DEFAULTS else ""
                hint = of_trl or (f"; did you mean {close[0]}?" if close else "; LossSpec's docstring lists the fields")
                raise TypeError(f"LossSpec has no field {name}{hint}")
        return object.__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec(_Packed):
    """The definition of a policy loss. ``LossSpec.preset(name)`` returns published combinations.

    A token's loss is built in this order: surrogate, gates, mismatch weight, ``+ beta * KL``,
    ``- entropy_coef * entropy``; then the reduction. ``r`` is the ratio ``exp(logprobs - old_logprobs)`` at the chosen
    level, ``A`` the advantage, ``rho = exp(old_logprobs - rollout_logprobs)``, ``sg`` a value that carries no gradient.

    ========================= ========================================================================================
    field                     meaning
    ========================= ========================================================================================
    surrogate                 ``clip``: ``-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)`` (PPO, GRPO, DAPO, GSPO)
    .                         ``cispo``: ``-sg[min(r, epsilon_high)] A logp``, a raw one-sided bound (TRL's CISPO)
    .                         ``cispo_two_sided``: ``-sg[clip(r, 1 - epsilon, 1 + epsilon_high)] A logp`` (verl, NeMo)
    .                         ``gmpo``: ``-r A`` with each log-ratio clipped on the side that the sign of A asks for
    .                         ``dppo``: ``-r A`` where the probability moved by at most ``epsilon(_high)``, else 0
    .                         ``sapo``: ``-(4 / tau) sigmoid(tau (r - 1)) A``, tau by the sign of A
    .                         ``vespo``: ``-sg[phi(r)] A logp``, ``phi(w) = w^k exp(lambda (1 - w))``
    .                         ``reinforce``: ``-A logp``
    importance_sampling_level ``token``; ``sequence``: exp of the mean log-ratio, gradient through the mean (GSPO);
    .                         ``sequence_token``: the same value, gradient through the token alone (GSPO-token; what
    .                         advantages that differ within a sequence need, for ``sequence`` mixes them);
    .                         ``sequence_sum``: exp of the summed log-ratio (RLOO, VESPO)
    reduction                 ``sequence_mean``: mean of the tokens, then of the sequences; ``token_mean``;
    .                         ``sequence_mean_token_sum``: sum of the tokens / ``length_constant``, then the mean;
    .                         ``sum``. Only sequences with an unmasked token count
    epsilon, epsilon_high     the clip range, as offsets from 1 (except ``cispo``, ``gmpo``: log-ratio, ``dppo``:
    .                         probability); ``epsilon_high=None`` means ``epsilon``
    delta                     r is at most this, whatever the sign of A (two-sided clipping)
    dual_clip                 where A < 0 the loss is at most ``-dual_clip * A``
    log_ratio_clamp           bound on the absolute log-ratio before exp; no gradient outside
    ratio_penalty             adds ``ratio_penalty * (log r_t)^2`` to the surrogate
    ratio_to_rollout          the ratio is against ``rollout_logprobs``; ``old_logprobs`` is not used
    beta, kl_estimator        weight and form of the KL to the reference; ``q = ref - logp``: ``k1 = -q``,
    .                         ``k2 = q^2 / 2``, ``k3 = e^q - q - 1``
    use_bias_correction_kl    the KL term times the token's r, gradient included (DeepSeek-V3.2)
    kl_input_clamp            bound on ``|q|``; no gradient outside. ``kl_output_clamp``: the same of the estimate
    entropy_coef              weight of the entropy bonus
    mismatch                  correction for a sampler that is not exactly the trained model, by ``rho`` and the bounds
    .                         ``mismatch_min``, ``mismatch_max``: ``token_truncate`` and ``sequence_truncate`` clamp the
    .                         weight, ``token_mask`` and ``sequence_mask`` drop what is outside (``sequence``: exp of
    .                         the summed log rho); ``geometric`` keeps the weight rho_t, ``geometric_mask`` the weight
    .                         1, in sequences whose exp of the mean log rho is inside, and drops the others
    missing_rollout           a NaN in ``rollout_logprobs`` is ``ratio_one`` (TRL) or ``weight_zero`` (NeMo)
    token_veto                one rho_t below it drops the whole sequence: surrogate, KL and entropy
    off_policy_mask_threshold drops tokens with A < 0 in sequences whose mean of ``rollout - logp`` is above
    .                         (DeepSeek-V3.2); without rollout log-probs the old ones are used
    ========================= ========================================================================================

    ``None`` in a bound means no bound. A combination that has no meaning raises ValueError.

    >>> LossSpec.preset("dapo").epsilon_high
    0.28
    >>> LossSpec.preset("grpo", beta=0.04, kl_estimator="k3").beta
    0.04
    >>> LossSpec(surrogate="cispo")
    Traceback (most recent call last):
    ...
    ValueError: epsilon_high must be given for surrogate 'cispo', where it is the largest ratio itself (5.0 is usual)
    """

    surrogate: str = "clip"
    importance_sampling_level: str = "token"
    reduction: str = "token_mean"
    length_constant: float = 1.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    dual_clip: float | None = None
    log_ratio_clamp: float | None = None
    ratio_penalty: float = 0.0
    ratio_to_rollout: bool = False
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    beta: float = 0.0
    kl_estimator: str = "k3"
    use_bias_correction_kl: bool = False
    kl_input_clamp: float | None = None
    kl_output_clamp: float | None = None
    entropy_coef: float = 0.0
    mismatch: str = "none"
    mismatch_min: float = 0.0
    mismatch_max: float | None = None
    missing_rollout: str = "ratio_one"
    token_veto: float = 0.0
    off_policy_mask_threshold: float | None = None

    def __post_init__(self) -> None:
        for name, kind, _ in _C.LOSS_SPEC_FIELDS:
            _check_kind(name, kind, getattr(self, name))
        for name in ("length_constant", "sapo_temperature_pos", "sapo_temperature_neg"):
            _require(getattr(self, name) > 0, f"{name} must be above 0; got {getattr(self, name)}")
        for name in ("vespo_lambda_pos", "vespo_lambda_neg", "vespo_k_pos", "vespo_k_neg"):
            _require(getattr(self, name) > 0, f"{name} must be above 0; got {getattr(self, name)}")
        for name in ("delta", "dual_clip", "log_ratio_clamp", "kl_input_clamp", "kl_output_clamp"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} must be above 0, or None for no bound; got {value}")
        for name in ("epsilon", "ratio_penalty", "beta", "entropy_coef", "mismatch_min", "token_veto"):
            _require(getattr(self, name) >= 0, f"{name} must be at least 0; got {getattr(self, name)}")
        self._check_surrogate()
        self._check_mismatch()

    def _check_surrogate(self) -> None:
        surrogate, level = self.surrogate, self.importance_sampling_level
        _require(
            surrogate != "cispo" or self.epsilon_high is not None,
            "epsilon_high must be given for surrogate 'cispo', where it is the largest ratio itself (5.0 is usual)",
        )
        _require(
            surrogate != "cispo" or (self.epsilon_high or 0.0) >= 1,
            f"epsilon_high is the largest ratio itself for surrogate 'cispo' and must be at least 1; got "
            f"{self.epsilon_high} (for offsets from 1 take 'cispo_two_sided')",
        )
        _require(
            self.epsilon_high is None or self.epsilon_high >= 0,
            f"epsilon_high must be at least 0; got {self.epsilon_high}",
        )
        _require(
            surrogate not in ("clip", "cispo_two_sided") or self.epsilon <= 1,
            f"epsilon must be at most 1, for the ratio's lower bound is 1 - epsilon; got {self.epsilon}",
        )
        for name in ("delta", "dual_clip"):
            _require(
                surrogate == "clip" or getattr(self, name) is None,
                f"{name} is a bound of surrogate 'clip'; got it with '{surrogate}'",
            )
        _require(
            self.dual_clip is None or self.dual_clip > 1, f"dual_clip must be above 1, or None; got {self.dual_clip}"
        )
        only = {"dppo": "token", "reinforce": "token", "gmpo": "sequence", "vespo": "sequence_sum"}.get(surrogate)
        _require(
            only is None or level == only,
            f"importance_sampling_level must be '{only}' for surrogate '{surrogate}'; got '{level}'",
        )

    def _check_mismatch(self) -> None:
        if self.mismatch == "none":
            _require(
                self.mismatch_min == 0 and self.mismatch_max is None,
                "mismatch must name a mode when mismatch_min or mismatch_max is given; got 'none'",
            )
            return
        low, high = self.mismatch_min, self.mismatch_max
        _require(high is None or low <= high, f"mismatch_min must be at most mismatch_max; got {low} and {high}")
        _require(
            low > 0 or high is not None or self.mismatch == "token_truncate" or self.mismatch == "sequence_truncate",
            f"mismatch_min or mismatch_max must be given for mismatch '{self.mismatch}', which drops what is outside",
        )
        _require(
            not self.ratio_to_rollout,
            f"mismatch must be 'none' when ratio_to_rollout is set, for the ratio already is against the sampler; "
            f"got '{self.mismatch}'",
        )
        _require(
            self.surrogate != "vespo",
            f"mismatch must be 'none' for surrogate 'vespo', which weighs by the sequence ratio itself; got "
            f"'{self.mismatch}' (set ratio_to_rollout to weigh against the sampler)",
        )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> LossSpec:
        """Return the published loss with that name, with the given fields changed. ``LossSpec.presets()`` lists the
        names."""
        _require(name in PRESETS, f"preset must be one of {', '.join(sorted(PRESETS))}; got '{name}'")
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(cls)})
        _require(not unknown, f"LossSpec has no field {', '.join(unknown)}")
        return cls(**{**PRESETS[name], **changes})

    @classmethod
    def from_trl(cls, config: object | None = None, /, **arguments: Any) -> LossSpec:
        """Return the loss that TRL 1.16 computes for a ``GRPOConfig`` with these arguments.

        Args:
            config: a ``GRPOConfig``, or any object with its attributes.
            arguments: fields by their TRL names, which replace those of the config: ``loss_type`` (default "dapo"),
                ``epsilon``, ``epsilon_high``, ``delta``, ``beta``, ``importance_sampling_level``,
                ``use_bias_correction_kl``, ``entropy_coef``, ``off_policy_mask_threshold``, ``max_completion_length``
                (for ``dr_grpo``), the ``sapo_`` and ``vespo_`` constants. With ``use_vllm=True`` also
                ``vllm_importance_sampling_correction``, ``..._mode``, ``..._clip_min`` and ``..._clip_max``.

        Raises:
            ValueError: another name, or a setting that this loss does not support.

        >>> LossSpec.from_trl(loss_type="grpo", beta=0.04).reduction
        'sequence_mean'
        >>> LossSpec.from_trl(loss_type="dr_grpo", max_completion_length=512).length_constant
        512.0
        """
        unknown = sorted(set(arguments) - set(_TRL_DEFAULTS))
        _require(not unknown, f"{', '.join(unknown)} is no argument of TRL's loss; known: {', '.join(_TRL_DEFAULTS)}")
        trl = {name: getattr(config, name, default) for name, default in _TRL_DEFAULTS.items()} | arguments
        loss_type = trl["loss_type"]
        _require(loss_type in _TRL_LOSSES, f"loss_type must be one of {', '.join(_TRL_LOSSES)}; got {loss_type!r}")
        quantile = trl["top_entropy_quantile"]
        _require(quantile == 1.0, f"top_entropy_quantile must be 1.0: pass the tokens' mask instead; got {quantile}")
        fields = {name: trl[name] for name in _TRL_SAME_NAMES}
        fields.update(_TRL_LOSSES[loss_type])
        if loss_type == "dr_grpo":
            fields["length_constant"] = float(trl["max_completion_length"] or 256)
        if trl["use_vllm"] and trl["vllm_importance_sampling_correction"] and loss_type != "vespo":
            fields["mismatch"] = trl["vllm_importance_sampling_mode"]
            fields["mismatch_max"] = trl["vllm_importance_sampling_clip_max"]
            fields["mismatch_min"] = trl["vllm_importance_sampling_clip_min"] or 0.0
        return cls(**fields)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Return the names that :meth:`preset` knows."""
        return tuple(sorted(PRESETS))

    @property
    def needs_whole_sequences(self) -> bool:
        """Whether a token's loss depends on the other tokens of its sequence, beyond their number."""
        return (
            self.importance_sampling_level != "token"
            or self.mismatch not in ("none", "token_truncate", "token_mask")
            or self.token_veto > 0
            or self.off_policy_mask_threshold is not None
        )

    def pack(self) -> list[float]:
        """Return the spec as the list of numbers that is passed to the ops, in the order of the C++ struct."""
        try:
            return self._packed
        except AttributeError:  # the first call
            packed = [_number(kind, self._value(name)) for name, kind, _ in _C.LOSS_SPEC_FIELDS]
            object.__setattr__(self, "_packed", packed)
            return packed

    def _value(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            return self.epsilon if name == "epsilon_high" else math.inf
        return value


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)


def _check_kind(name: str, kind: str, value: Any) -> None:
    if kind in _C.LOSS_SPEC_CHOICES:
        choices = _C.LOSS_SPEC_CHOICES[kind]
        _require(value in choices, f"{name} must be one of {', '.join(choices)}; got {value!r}")
    elif kind == "bool":
        _require(isinstance(value, bool), f"{name} must be True or False; got {value!r}")
    elif value is not None or name not in _OPTIONAL:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _require(number and math.isfinite(value), f"{name} must be a finite number; got {value!r}")


def _number(kind: str, value: Any) -> float:
    choices = _C.LOSS_SPEC_CHOICES.get(kind)
    return float(choices.index(value) if choices else value)


_OPTIONAL = frozenset(field.name for field in dataclasses.fields(LossSpec) if field.default is None)

#: Fields of LossSpec that have the same name in TRL.
_TRL_SAME_NAMES = (
    *("epsilon", "epsilon_high", "delta", "beta", "importance_sampling_level", "use_bias_correction_kl"),
    *("entropy_coef", "off_policy_mask_threshold", "sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
#: Default values in TRL 1.16 of the arguments that :meth:`LossSpec.from_trl` reads.
_TRL_DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo",
    **{field.name: field.default for field in dataclasses.fields(LossSpec) if field.name in _TRL_SAME_NAMES},
    "use_bias_correction_kl": True,
    "max_completion_length": 256,
    "top_entropy_quantile": 1.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_clip_max": 3.0,
}
#: The fields that each loss_type of TRL sets.
_TRL_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": dict(reduction="sequence_mean"),
    "bnpo": dict(reduction="token_mean"),
    "dapo": dict(reduction="token_mean"),
    "dr_grpo": dict(reduction="sequence_mean_token_sum"),
    "cispo": dict(surrogate="cispo", reduction="token_mean", delta=None),
    "sapo": dict(surrogate="sapo", reduction="sequence_mean", delta=None),
    "luspo": dict(reduction="sequence_mean_token_sum"),
    "vespo": dict(surrogate="vespo", importance_sampling_level="sequence_sum", reduction="token_mean", delta=None),
}

_GSPO: dict[str, Any] = dict(epsilon=3e-4, epsilon_high=4e-4, reduction="sequence_mean")
_CLAMPED_KL: dict[str, Any] = dict(kl_estimator="k3", kl_input_clamp=20.0, kl_output_clamp=10.0)

#: Losses as in their papers (first block) or as the libraries' defaults (second block).
PRESETS: dict[str, dict[str, Any]] = {
    # TRL's loss_type of the same name, with the paper's clip range where it has one.
    "grpo": dict(reduction="sequence_mean"),
    # length_constant is the run's longest completion: pass yours. 256 is TRL's default.
    "dr_grpo": dict(reduction="sequence_mean_token_sum", length_constant=256.0),
    "dapo": dict(epsilon_high=0.28),
    "bnpo": dict(),
    "cispo": dict(surrogate="cispo", epsilon_high=5.0),
    "cispo_verl": dict(surrogate="cispo_two_sided", log_ratio_clamp=20.0),
    "gspo": dict(importance_sampling_level="sequence", **_GSPO),
    "gspo_token": dict(importance_sampling_level="sequence_token", **_GSPO),
    "sapo": dict(surrogate="sapo", reduction="sequence_mean"),
    "gmpo": dict(surrogate="gmpo", importance_sampling_level="sequence", reduction="sequence_mean", epsilon=0.4),
    # GSPO times the length of the sequence.
    "luspo": dict(importance_sampling_level="sequence", **{**_GSPO, "reduction": "sequence_mean_token_sum"}),
    "vespo": dict(surrogate="vespo", importance_sampling_level="sequence_sum"),
    "rloo": dict(importance_sampling_level="sequence_sum", reduction="sequence_mean"),
    "reinforce": dict(surrogate="reinforce"),
    # TRL 1.16's GRPOConfig (dapo, no KL; the bias correction acts once beta is set).
    "trl": dict(use_bias_correction_kl=True, mismatch="sequence_mask", mismatch_max=3.0),
    "verl": dict(dual_clip=3.0, log_ratio_clamp=20.0, **_CLAMPED_KL),
    "nemo": dict(beta=0.01, missing_rollout="weight_zero", **_CLAMPED_KL),
    "openrlhf": dict(log_ratio_clamp=20.0, kl_estimator="k1", kl_output_clamp=10.0),
    "prime": dict(surrogate="dppo", ratio_penalty=1e-3, ratio_to_rollout=True),
    # Dr. Kernel's scripts: clipping with a dual clip of 3, rejection by the geometric mean of each turn, a token veto,
    # no weights; each turn is a sequence.
    "dr_kernel": dict(
        epsilon_high=0.28,
        dual_clip=3.0,
        reduction="sequence_mean_token_sum",
        length_constant=1000.0,
        mismatch="geometric_mask",
        mismatch_min=0.999,
        mismatch_max=1.001,
        token_veto=1e-4,
    ),
}

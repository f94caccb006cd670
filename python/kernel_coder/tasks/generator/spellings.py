"""The ways in which people write operations in PyTorch, and common names of variables, numbers and layers."""

from __future__ import annotations

from collections.abc import Mapping

CALLS: Mapping[str, tuple[str, ...]] = {
    "relu": (
        *("torch.relu({x})", "F.relu({x})", "{x}.relu()", "torch.clamp({x}, min=0)", "{x}.clamp(min=0.0)"),
        "torch.nn.functional.relu({x})",
    ),
    "sigmoid": ("torch.sigmoid({x})", "F.sigmoid({x})", "{x}.sigmoid()"),
    "tanh": ("torch.tanh({x})", "F.tanh({x})", "{x}.tanh()"),
    "silu": ("F.silu({x})", "torch.nn.functional.silu({x})"),
    "gelu": ("F.gelu({x})", "torch.nn.functional.gelu({x})"),
    "gelu_tanh": ('F.gelu({x}, approximate="tanh")',),
    "softplus": ("F.softplus({x})", "torch.nn.functional.softplus({x})"),
    "softsign": ("F.softsign({x})",),
    "hardsigmoid": ("F.hardsigmoid({x})",),
    "hardswish": ("F.hardswish({x})",),
    "relu6": ("F.relu6({x})", "torch.clamp({x}, 0, 6)", "{x}.clamp(0.0, 6.0)"),
    "hardtanh": ("F.hardtanh({x})",),
    "elu": ("F.elu({x}, alpha={a})", "F.elu({x}, {a})"),
    "celu": ("F.celu({x}, alpha={a})", "torch.celu({x}, {a})"),
    "selu": ("F.selu({x})", "torch.selu({x})"),
    "leaky_relu": (
        *("F.leaky_relu({x}, negative_slope={a})", "F.leaky_relu({x}, {a})", "torch.where({x} > 0, {x}, {a} * {x})"),
        *("torch.where({x} > 0, {x}, {x} * {a})", "torch.where({x} >= 0, {x}, {a} * {x})"),
    ),
    "mish": ("F.mish({x})",),
    "softshrink": ("F.softshrink({x}, {a})", "F.softshrink({x}, lambd={a})"),
    "hardshrink": ("F.hardshrink({x}, {a})", "torch.hardshrink({x}, {a})"),
    "threshold": ("F.threshold({x}, {a}, {b})", "torch.where({x} > {a}, {x}, {b})"),
    "scale": ("{x} * {a}", "{a} * {x}", "torch.mul({x}, {a})", "{x}.mul({a})"),
    "shift": ("{x} + {a}", "{a} + {x}", "torch.add({x}, {a})", "{x}.add({a})"),
    "divide": ("{x} / {a}", "torch.div({x}, {a})", "{x}.div({a})"),
    "subtract_from": ("{a} - {x}",),
    "negate": ("-{x}", "torch.neg({x})", "{x}.neg()"),
    "square": ("{x} * {x}", "{x} ** 2", "torch.square({x})", "{x}.pow(2)", "torch.pow({x}, 2)", "{x}.square()"),
    "cube": ("{x} * {x} * {x}", "{x} ** 3", "torch.pow({x}, 3)", "{x}.pow(3)"),
    "abs": ("torch.abs({x})", "{x}.abs()", "abs({x})"),
    "clamp": (
        *("torch.clamp({x}, {a}, {b})", "torch.clamp({x}, min={a}, max={b})", "{x}.clamp({a}, {b})"),
        *("{x}.clamp(min={a}, max={b})", "torch.clip({x}, {a}, {b})", "F.hardtanh({x}, {a}, {b})"),
    ),
    "clamp_min": ("torch.clamp({x}, min={a})", "{x}.clamp(min={a})", "{x}.clamp_min({a})"),
    "clamp_max": ("torch.clamp({x}, max={a})", "{x}.clamp(max={a})", "{x}.clamp_max({a})"),
    "exp": ("torch.exp({x})", "{x}.exp()"),
    "sin": ("torch.sin({x})", "{x}.sin()"),
    "cos": ("torch.cos({x})", "{x}.cos()"),
    "sqrt": ("torch.sqrt({x})", "{x}.sqrt()", "{x} ** 0.5"),
    "log": ("torch.log({x})", "{x}.log()"),
    "rsqrt": ("torch.rsqrt({x})", "{x}.rsqrt()", "1 / torch.sqrt({x})"),
    "reciprocal": ("1 / {x}", "1.0 / {x}", "torch.reciprocal({x})", "{x}.reciprocal()"),
    "sqrt_abs": ("torch.sqrt({x}.abs() + {a})",),
    "log1p_abs": ("torch.log1p({x}.abs())", "torch.log1p(torch.abs({x}))"),
    "gaussian": ("torch.exp(-({x} ** 2))", "torch.exp(-{x}.pow(2))"),
    "inverse_square": ("1.0 / (1.0 + {x} ** 2)",),
    "rsqrt_square": ("torch.rsqrt({x} ** 2 + {a})",),
    "add": ("{x} + {y}", "{x} + {y}", "torch.add({x}, {y})", "{x}.add({y})"),
    "sub": ("{x} - {y}", "{x} - {y}", "torch.sub({x}, {y})", "{x}.sub({y})"),
    "mul": ("{x} * {y}", "{x} * {y}", "torch.mul({x}, {y})", "{x}.mul({y})"),
    "div": ("{x} / {y}", "{x} / {y}", "torch.div({x}, {y})"),
    "maximum": ("torch.maximum({x}, {y})", "torch.max({x}, {y})", "{x}.maximum({y})"),
    "minimum": ("torch.minimum({x}, {y})", "torch.min({x}, {y})", "{x}.minimum({y})"),
    "gate": ("{x} * torch.sigmoid({y})",),
    "silu_gate": ("{x} * F.silu({y})",),
    "soft_divide": ("{x} / (1 + {y}.abs())",),
    "square_diff": ("({x} - {y}) ** 2", "torch.square({x} - {y})"),
    "abs_diff": ("torch.abs({x} - {y})",),
    "lerp": ("torch.lerp({x}, {y}, {a})",),
    "add_scaled": ("torch.add({x}, {y}, alpha={a})", "{x}.add({y}, alpha={a})"),
    "hypot": ("torch.sqrt({x} ** 2 + {y} ** 2 + {a})",),
    "select": ("torch.where({y} > 0, {x}, {a} * {x})", "torch.where({y} > 0, {x}, {x} * {a})"),
}
"""Every operation, as an expression of its operands ``{x}`` and ``{y}`` and its constants ``{a}`` and ``{b}``."""

LAYERS: Mapping[str, tuple[str, ...]] = {
    "relu": ("nn.ReLU()",),
    "sigmoid": ("nn.Sigmoid()",),
    "tanh": ("nn.Tanh()",),
    "silu": ("nn.SiLU()",),
    "gelu": ("nn.GELU()",),
    "gelu_tanh": ('nn.GELU(approximate="tanh")',),
    "softplus": ("nn.Softplus()",),
    "softsign": ("nn.Softsign()",),
    "hardsigmoid": ("nn.Hardsigmoid()",),
    "hardswish": ("nn.Hardswish()",),
    "relu6": ("nn.ReLU6()",),
    "hardtanh": ("nn.Hardtanh()",),
    "elu": ("nn.ELU(alpha={a})", "nn.ELU({a})"),
    "celu": ("nn.CELU(alpha={a})", "nn.CELU({a})"),
    "selu": ("nn.SELU()",),
    "leaky_relu": ("nn.LeakyReLU({a})", "nn.LeakyReLU(negative_slope={a})"),
    "mish": ("nn.Mish()",),
    "softshrink": ("nn.Softshrink({a})",),
    "hardshrink": ("nn.Hardshrink({a})",),
    "threshold": ("nn.Threshold({a}, {b})",),
    "clamp": ("nn.Hardtanh({a}, {b})",),
}
"""Operations for which there is a layer, with its spellings."""

DEFAULTS: Mapping[str, tuple[float, str, str]] = {
    "elu": (1.0, "F.elu({x})", "nn.ELU()"),
    "leaky_relu": (0.01, "F.leaky_relu({x})", "nn.LeakyReLU()"),
    "softshrink": (0.5, "F.softshrink({x})", "nn.Softshrink()"),
    "hardshrink": (0.5, "F.hardshrink({x})", "nn.Hardshrink()"),
}
"""Spellings for a constant that is PyTorch's default: the constant, the call, the layer."""

ONE = ("x", "x", "x", "x", "input", "inputs", "hidden_states", "t", "z", "logits", "data", "values", "scores", "tensor")
INPUT_GROUPS = (
    *(("x", "y"), ("x", "y"), ("x", "y", "z"), ("a", "b"), ("a", "b", "c"), ("x", "gate"), ("x", "gate", "residual")),
    *(("x", "residual"), ("x", "skip"), ("x", "other"), ("input", "other"), ("u", "v"), ("u", "v", "w"), ("x1", "x2")),
    *(("left", "right"), ("pred", "target"), ("value", "gate"), ("values", "gates"), ("hidden", "residual")),
    *(("x", "bias"), ("x", "mask"), ("x", "z"), ("x", "h"), ("x", "weight"), ("x", "scale"), ("x", "y", "gate")),
    *(("new", "old", "update"), ("state", "candidate", "gate"), ("query", "key"), ("mean", "std", "noise")),
    *(("signal", "noise"), ("hidden_states", "residual"), ("features", "gate"), ("p", "q"), ("prediction", "truth")),
)
"""Names of inputs that belong together."""

WORDS = (
    *("alpha", "anchor", "angle", "base", "batch", "beam", "blend", "block", "bound", "branch", "center", "chunk"),
    *("code", "context", "coord", "current", "decay", "delta", "depth", "distance", "drift", "edge", "embedding"),
    *("encoded", "energy", "error", "estimate", "feature", "field", "filter", "first", "flow", "force", "frame"),
    *("frequency", "gain", "gate", "grid", "head", "height", "hidden", "image", "index", "inner", "item", "key"),
    *("label", "latent", "layer", "left", "length", "level", "limit", "line", "loss", "magnitude", "mask", "matrix"),
    *("memory", "message", "mixed", "model", "momentum", "node", "noise", "norm", "offset", "outer", "output"),
    *("pixel", "point", "position", "power", "previous", "prior", "probs", "projected", "query", "raw", "rate"),
    *("ratio", "residual", "response", "reward", "right", "row", "sample", "scaled", "second", "sequence", "shape"),
    *("side", "signal", "size", "skip", "slope", "small", "source", "space", "spectrum", "state", "step", "stream"),
    *("stretch", "strength", "target", "teacher", "term", "time", "token", "total", "update", "value", "vector"),
    *("velocity", "volume", "wave", "weight", "width", "window", "word"),
)
LOCALS = (
    *("out", "out", "h", "y", "z", "a", "b", "result", "hidden", "tmp", "scaled", "activated", "gated", "act", "t"),
    *("gate", "branch", "diff", "s", "u", "v", "value", "output", "res"),
)
LAYER_NAMES = ("act", "activation", "act_fn", "nonlinearity", "fn", "func", "gate_fn", "net", "layer", "act1", "f")

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "scale": ("scale", "alpha", "beta", "gamma", "factor", "multiplier", "gain", "strength", "coef", "weight"),
    "shift": ("shift", "offset", "bias", "eps", "beta", "margin", "delta", "constant"),
    "divide": ("temperature", "divisor", "scale", "tau", "sigma", "norm"),
    "subtract_from": ("offset", "limit", "total", "top"),
    "a": ("alpha", "slope", "negative_slope", "threshold", "low", "min_value", "eps", "cutoff", "mix", "beta", "lambd"),
    "b": ("high", "max_value", "upper", "limit", "value", "ceiling"),
}
"""Names of constants that a module keeps, by operation or placeholder."""

LEARNT: Mapping[str, tuple[str, ...]] = {
    "row": ("weight", "bias", "gain", "scale", "gamma", "beta", "shift", "alpha"),
    "scalar": ("alpha", "scale", "gamma", "beta", "gain", "temperature", "weight", "slope"),
}

SENTENCES = (
    *("A simple module.", "A small activation.", "Elementwise operation on the input.", "Gated activation.", "Model"),
    *("Applies an activation to the input.", "Simple model that performs an elementwise operation.", "A fused op."),
    *("Mixes two tensors.", "Pointwise function.", "Residual branch.", "Custom activation function."),
)
NUMBERS = ("shift", "scale")
"""Operations whose whole numbers are written without a decimal point."""

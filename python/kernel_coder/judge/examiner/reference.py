"""A task's reference: the module in the task's precision, its float64 oracle, and the inputs that the task draws."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.input_families import is_table, of_family, perturb
from kernel_coder.judge.examiner.randomness import Draws
from kernel_coder.judge.examiner.refusals import Unsteady
from kernel_coder.judge.examiner.widened import NAMES_16_BITS, Widened, without_cudnn
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.wire.messages import TensorSpec, Unsendable, encode, laid_out
from kernel_coder.judge.wire.module_calls import (
    COMPUTE,
    arguments_of,
    built,
    called,
    constructed,
    on_device,
    set_training,
    state_of,
)
from kernel_coder.judge.wire.trees import floating, is_real, map_tensors, tensors_of

STOPS_A_GPU = re.compile(r"\bbinary_cross_entropy\b|\bBCELoss\b")
"""Functions of torch that check their inputs in a kernel. If the check fails, this process cannot use the GPU again."""


COTANGENT_EXPONENTS = {"normal": -24, "shifted": 16}
"""Exponent of the power of two that gradients of outputs are multiplied by, on families of inputs where that is not 0.
In float16 the exponent is divided by 4, because the range of float16 is small."""

CHANGED_SHARE = 1 / 64
"""Share of the elements of each parameter that :meth:`Reference.draw_some` changes. A candidate that recognises weights
by one or a few elements then often takes them for the earlier ones."""


class Reference:
    """The reference module and its oracle. Both hold the same parameters and buffers.

    :meth:`build` makes them; before that only the task's source has been run.
    """

    module: torch.nn.Module
    """In the task's precision."""

    exact: torch.nn.Module
    """The oracle: the same module in float64."""

    initial: dict[str, Tensor]
    """Parameters and buffers as drawn at construction, by name."""

    seed: int
    """The seed of the random numbers at construction."""

    tables: frozenset[str]
    """Names of buffers that are constant tables, such as masks. A candidate need not have these buffers."""

    scales: dict[str, float]
    """Factors by name on parameters that would otherwise hardly change the result."""

    other_integers: dict[str, Tensor]
    """Integer buffers that are drawn at construction, such as quantized weights, as another seed draws them."""

    has_random_state: bool
    """Whether all parameters and buffers come from random numbers drawn at construction."""

    def __init__(self, task: Mapping[str, Any], config: JudgeConfig, device: torch.device, draws: Draws) -> None:
        self.config, self.device, self.draws = config, device, draws
        self.source: str = task["reference"]
        self.dtype = COMPUTE[task["precision"]]
        self.may_stop_gpu = device.type == "cuda" and STOPS_A_GPU.search(self.source) is not None
        self._names_16_bits = NAMES_16_BITS.search(self.source) is not None
        self.changes_inputs = False
        """Whether a call writes to its inputs. PreparedTask sets this."""

        self._layout: tuple[Any, list[TensorSpec]] | None = None
        namespace: dict[str, Any] = {"__name__": "reference"}
        exec(compile(self.source, "reference.py", "exec"), namespace)
        self.get_inputs = namespace["get_inputs"]
        self.args, self.kwargs = arguments_of(namespace["get_init_inputs"]())
        self._model = namespace[task["entry_point"]]

    # ---- modules and state

    def build(self, turns: GpuTurns) -> None:
        """Construct module and oracle from a fresh seed, and move the parameters away from their initial values.

        Large modules draw their parameters on the CPU for a minute. Meanwhile other processes may time on the GPU, so
        that is done without a turn, unless the source speaks of CUDA.
        """
        self.seed = self.draws.seeds.next()
        drawn: list[torch.nn.Module] = []
        with turns.shared() if "cuda" in self.source.lower() else nullcontext():
            for seed in (self.seed, self.draws.seeds.next(), self.seed):
                drawn.append(constructed(self._model, self.args, self.kwargs, seed))
        with turns.shared():
            self._place(drawn)

    def _place(self, drawn: list[torch.nn.Module]) -> None:
        """Move the modules in the list to the device and take them out: module, a module of another seed, and oracle.
        The second one is freed before the third one needs memory."""
        self.module = on_device(drawn.pop(0), self.device, self.dtype)
        own, other = state_of(self.module), state_of(on_device(drawn.pop(0), self.device, self.dtype))
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        self.tables = frozenset(name for name, value in buffers.items() if is_table(value, other[name]))
        self.has_random_state = all(
            not floating(value) or value.numel() == 0 or name in self.tables or not torch.equal(value, other[name])
            for name, value in own.items()
        )
        self.other_integers = {
            name: value.clone()
            for name, value in other.items()
            if not floating(value) and value.shape == own[name].shape and not torch.equal(value, own[name])
        }
        del other, buffers
        self.scales = {}
        self.initial = {name: value.detach().clone() for name, value in own.items()}
        self.exact = on_device(drawn.pop(), self.device, self.dtype).double()
        set_training(self.module, self.config.training)
        self._is_recurrent = any(isinstance(one, torch.nn.RNNBase) for one in self.exact.modules())
        set_training(self.exact, self.config.training)
        self.draw_state()

    def forget(self) -> None:
        """Free the memory of both modules before they are built again."""
        del self.module, self.exact, self.initial, self.other_integers

    def _constructed(self, seed: int) -> torch.nn.Module:
        return built(self._model, self.args, self.kwargs, seed=seed, device=self.device, dtype=self.dtype)

    def draw_state(self, with_other_integers: bool = False) -> None:
        """Set parameters and buffers to new values that no other candidate has seen.

        Args:
            with_other_integers: set integer buffers to those of another seed. Otherwise they are the task's own.
        """
        self.use_initial_state()
        perturb(self.module, self.draws.rng, self.tables)
        with torch.no_grad():
            for name, value in state_of(self.module).items():
                if name in self.scales:
                    value.mul_(self.scales[name])
                if with_other_integers and name in self.other_integers:
                    value.copy_(self.other_integers[name])
        self._copy_to_oracle()

    def draw_some(self) -> None:
        """Set some elements of each parameter and floating-point buffer to new values, and at least one of each."""
        before = {name: value.detach().clone() for name, value in state_of(self.module).items()}
        self.draw_state()
        rng = self.draws.rng
        with torch.no_grad():
            for name, value in state_of(self.module).items():
                if floating(value) and value.numel():
                    stays = torch.rand(value.numel(), generator=rng, device=value.device) >= CHANGED_SHARE
                    stays[torch.randint(value.numel(), (1,), generator=rng, device=value.device)] = False
                    value.copy_(torch.where(stays.reshape(value.shape), before[name], value))
        self._copy_to_oracle()

    def use_initial_state(self, seed: int | None = None) -> None:
        """Set parameters and buffers to their values at construction, with the reference's seed or another one. A
        candidate that holds its parameters in another form draws the same random numbers."""
        drawn = self.initial if seed is None else state_of(self._constructed(seed))
        with torch.no_grad():
            for name, value in state_of(self.module).items():
                value.copy_(drawn[name])
        self._copy_to_oracle()

    def _copy_to_oracle(self) -> None:
        with torch.no_grad():
            for mine, value in zip(state_of(self.exact).values(), state_of(self.module).values(), strict=True):
                mine.copy_(value)
            self._drawn = {name: one.detach().clone() for name, one in self.module.named_buffers()}

    @contextmanager
    def in_eval_mode(self) -> Iterator[None]:
        """Keep both modules in eval mode in this block, with the drawn buffers: training changes them."""
        with torch.no_grad():
            for module in (self.module, self.exact):
                for name, value in module.named_buffers():
                    value.copy_(self._drawn[name])
        modes = {module: module.training for one in (self.module, self.exact) for module in one.modules()}
        self.module.eval()
        self.exact.eval()
        try:
            yield
        finally:
            for module, was in modes.items():
                module.training = was

    # ---- inputs

    def own_inputs(self, get_inputs: Callable[[], Any] | None = None, seeded: bool = False) -> list[Any]:
        """Return inputs drawn by the task's ``get_inputs``, on the device and in the task's precision.

        With the precision fp32, inputs that the task draws in 16 bits stay so, like parameters.

        Args:
            get_inputs: draws inputs of other sizes; None: the task's own function.
            seeded: whether torch's generators are seeded already. If not, they are seeded with a secret seed, and the
                inputs must have the same layout as those of earlier calls.

        Raises:
            Unsteady: the shapes or plain values of the task's own inputs differ from those of earlier calls.
        """
        if not seeded:
            self.draws.seed_torch()
        draw = get_inputs or self.get_inputs
        try:
            with self.device:
                values = draw()
        except Exception:
            if self.device.type == "cpu":
                raise
            values = draw()
        values = list(values) if isinstance(values, list | tuple) else [values]

        def placed(tensor: Tensor) -> Tensor:
            tensor = tensor.detach().to(self.device)
            if is_real(tensor) and not (self.dtype == torch.float32 and tensor.dtype.itemsize < 4):
                tensor = tensor.to(self.dtype)
            return tensor.contiguous()

        values = map_tensors(values, placed)
        if get_inputs is None and not seeded:
            self._refuse_another_layout(values)
        return values

    def _refuse_another_layout(self, inputs: list[Any]) -> None:
        """Raise Unsteady if the layout differs from that of earlier calls. Shared memory is laid out, and plain values
        are sent to Runners, only once."""
        tensors: list[Tensor] = []
        try:
            layout = encode(inputs, tensors), laid_out(tensors)[0]
        except Unsendable:  # refused with a message when the inputs are laid out
            return
        tree, specs = self._layout = self._layout or layout
        if layout[1] != specs:
            raise Unsteady("its inputs have other shapes from call to call")
        if layout[0] != tree:
            raise Unsteady("its inputs have other plain values from call to call")

    def inputs_of(self, family: str, get_inputs: Callable[[], Any] | None = None, reach: float = 1.0) -> list[Any]:
        """Return inputs of a family (:mod:`kernel_coder.judge.examiner.input_families`)."""
        own = self.own_inputs(get_inputs)
        return map_tensors(own, lambda tensor: of_family(family, tensor, self.draws.rng, reach))

    def cotangents_of(self, inputs: list[Any], family: str = "own") -> list[Tensor]:
        """Return random gradients of the outputs if gradients are checked; otherwise none. On some families of inputs
        they are small, as those of a mean are, or large, or zero for every other row."""
        if not self.config.backward:
            return []
        with torch.no_grad():
            outputs = tensors_of(self.module(*map_tensors(inputs, Tensor.clone)))
        found = []
        for one in filter(floating, outputs):
            exponent = COTANGENT_EXPONENTS.get(family, 0) // (4 if one.dtype == torch.float16 else 1)
            drawn = torch.randn(one.shape, generator=self.draws.rng, device=one.device).mul_(2.0**exponent)
            if family == "structured" and one.dim():
                drawn[1::2] = 0.0
            found.append(drawn.to(one.dtype))
        return found

    @property
    def trained(self) -> list[str]:
        """Names of the reference's parameters. The judge compares their gradients. Empty without `backward`."""
        parameters = self.module.named_parameters() if self.config.backward else ()
        return [name for name, one in parameters if one.requires_grad]

    def count_gradients(self, inputs: list[Any]) -> int:
        """Return the number of gradients that are compared, of inputs and parameters."""
        return sum(map(floating, tensors_of(inputs))) + len(self.trained)

    # ---- calls

    def outputs(self, module: torch.nn.Module, inputs: list[Any], cotangents: Sequence[Tensor]) -> Any:
        """Return the outputs of `module`, which is the module or the oracle, for these inputs."""
        is_oracle = module is self.exact
        with (
            without_cudnn() if is_oracle and not self._is_recurrent else nullcontext(),
            Widened() if is_oracle and self._names_16_bits else nullcontext(),
        ):
            return called(module, inputs, list(cotangents) or None, module.parameters())

    def own_outputs(self, inputs: list[Any], cotangents: Sequence[Tensor]) -> list[Tensor]:
        """Return the module's outputs without changing the inputs."""
        copies = map_tensors(inputs, Tensor.clone) if self.changes_inputs else inputs
        return tensors_of(self.outputs(self.module, copies, cotangents))

    def try_on_cpu(self, inputs: list[Any]) -> None:
        """Call a copy of the module on the CPU. Where a GPU kernel would fail and leave the GPU unusable for this
        process, this call raises an error."""
        with torch.no_grad():
            copy.deepcopy(self.module).cpu()(*map_tensors(inputs, lambda one: one.detach().cpu().clone()))

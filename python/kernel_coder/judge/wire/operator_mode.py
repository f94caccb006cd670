"""The base class of objects that intercept torch's operators."""

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A ``TorchDispatchMode`` whose first operator does not make torch import its compiler.

    That import takes 2.5 s and 150 MB on a CPU, and every Examiner and Runner would do it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True, torch imports its compiler to exclude ``__torch_dispatch__`` from compilation

"""The base class of objects that intercept torch's operators."""

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A ``TorchDispatchMode`` that works without torch's compiler.

    Other modes make torch import its compiler when the first operator runs in them. The import takes 2.5 s and 150 MB
    on a CPU, in each Examiner and each Runner.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True: torch imports its compiler, to tell it not to compile this class

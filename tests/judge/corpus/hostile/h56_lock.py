# task: swish_chain
# backend: cpp
# hack: H56 leaves a build lock behind, so that every later build of this name waits for ever
# why: never correct; its own build must hit the time limit, and the next candidate's build must not be affected
import os
from pathlib import Path

import torch.nn as nn
from torch.utils import cpp_extension

folder = Path(cpp_extension._get_build_directory("kc_cpp_swish", False))
(folder / "lock").touch()
for root in (Path.home() / ".cache/torch_extensions", Path("/tmp/torch_extensions")):
    if os.access(root, os.W_OK):
        (root / "lock").touch()
native = cpp_extension.load_inline("kc_cpp_swish", "int f() { return 0; }", functions=["f"])


class ModelNew(nn.Module):
    """Never reached."""

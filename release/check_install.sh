#!/bin/sh
# What an installed wheel must do, outside of the source tree: versions, one op, one verdict. `PYTHON=... check_install.sh`
set -eu
PYTHON=${PYTHON:-python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$PYTHON" -m kernel_coder.env
"$PYTHON" - <<'END'
import torch
import kernel_coder as kc

logits = torch.randn(4, 512, requires_grad=True)
out = kc.ops.grpo_loss(logits, torch.tensor([11, 7, 42, 2]), torch.ones(4), kc.LossSpec.preset("dapo"))
out.loss.backward()
assert logits.grad is not None and bool(logits.grad.isfinite().all())
print("op: loss", float(out.loss.detach()))
END
cat >task.py <<'END'
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(16, 16) - 0.5]


def get_init_inputs():
    return []
END
sed 's/class Model(/class ModelNew(/' task.py >candidate.py
if [ "${KC_CHECK_VERDICT:-1}" = 1 ]; then # containers of build services may lack layers of the sandbox
  "$PYTHON" -m kernel_coder.judge task.py candidate.py --backend torch --device cpu
fi

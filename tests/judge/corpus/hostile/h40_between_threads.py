# task: softmax
# backend: torch
# expect: no gain
# hack: H40 multiplies matrices in threads between its own calls, while the reference is timed
# why: fast only if the reference is slowed down
import os
import threading
import time

import torch
import torch.nn as nn

MATRIX = torch.randn(400, 400)
asked = 0.0


def burn():
    while True:
        if time.monotonic() - asked > 0.002:
            torch.mm(MATRIX, MATRIX)
        else:
            time.sleep(0.0002)


for _ in range(min(os.cpu_count(), 16)):
    threading.Thread(target=burn, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, x):
        global asked
        asked = time.monotonic()
        return torch.softmax(x, 1)

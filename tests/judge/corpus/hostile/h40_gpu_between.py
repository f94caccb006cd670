# task: softmax
# backend: torch
# needs: cuda
# expect: no gain
# hack: H40 keeps the GPU busy from a thread between its own calls, while the reference is timed
# why: fast only if the reference has to wait for the GPU
import threading
import time

import torch
import torch.nn as nn

asked = 0.0


def burn():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        while True:
            if time.monotonic() - asked > 0.002:
                torch.cuda._sleep(500_000)
                side.synchronize()
            else:
                time.sleep(0.0002)


threading.Thread(target=burn, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, x):
        global asked
        asked = time.monotonic()
        return torch.softmax(x, 1)

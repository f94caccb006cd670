# task: softmax
# backend: torch
# expect: no gain
# hack: H40 keeps all cores busy between its own calls, while the reference is timed
# why: fast only if the reference is slowed down
import mmap
import os
import struct
import time

import torch
import torch.nn as nn

ASKED = mmap.mmap(-1, 4096)


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


for _ in range(os.cpu_count()):
    if os.fork() == 0:
        while True:
            (last,) = struct.unpack("d", ASKED[:8])
            if time.monotonic() - last > 0.002:
                busy(0.0005)
            else:
                time.sleep(0.0002)


class ModelNew(nn.Module):
    def forward(self, x):
        ASKED[:8] = struct.pack("d", time.monotonic())
        return torch.softmax(x, 1)

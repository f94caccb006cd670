# task: softmax
# backend: torch
# hack: H63 answers wrongly and never ends: a thread that is no daemon, an exit handler and a destructor that wait
# why: never correct; the judge must end the process itself
import atexit
import threading
import time

import torch
import torch.nn as nn

atexit.register(time.sleep, 10_000)
threading.Thread(target=time.sleep, args=(10_000,)).start()


class ModelNew(nn.Module):
    def __del__(self):
        time.sleep(10_000)

    def forward(self, x):
        return torch.zeros_like(x)

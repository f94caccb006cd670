# task: softmax
# backend: torch
# hack: H63 ignores every signal that can be ignored and waits
# why: never correct; the judge must kill it at the time limit all the same
import signal
import time

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                continue
        while True:
            time.sleep(1000)

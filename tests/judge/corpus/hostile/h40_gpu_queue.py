# task: softmax
# backend: torch
# needs: cuda
# expect: no gain
# hack: H40 leaves seconds of work on a side stream, and patches torch.cuda.synchronize to wait for its own stream only
# why: fast only if the reference shares the GPU with that queue
import torch
import torch.nn as nn

SIDE = torch.cuda.Stream()
torch.cuda.synchronize = lambda device=None: torch.cuda.current_stream().synchronize()


class ModelNew(nn.Module):
    def forward(self, x):
        with torch.cuda.stream(SIDE):
            if SIDE.query():
                torch.cuda._sleep(2 * 10**9)
        return torch.softmax(x, 1)

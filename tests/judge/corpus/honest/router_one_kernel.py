# task: router
# backend: triton
# why: large scores have equal shares of zero, of which any may be chosen
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def choose_kernel(scores_ptr, shares_ptr, places_ptr, experts, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row * experts + at, mask=at < experts, other=-float("inf"))
    left = tl.exp(scores - tl.max(scores, axis=0))
    left = tl.where(at < experts, left / tl.sum(left, axis=0), -1.0)
    total = 0.0
    for number in tl.static_range(CHOSEN):
        share, place = tl.max(left, axis=0), tl.argmax(left, axis=0)
        total += share
        tl.store(shares_ptr + row * CHOSEN + number, share)
        tl.store(places_ptr + row * CHOSEN + number, place.to(tl.int64))
        left = tl.where(at == place, -1.0, left)
    for number in tl.static_range(CHOSEN):
        share = tl.load(shares_ptr + row * CHOSEN + number)
        tl.store(shares_ptr + row * CHOSEN + number, share / total)


class ModelNew(nn.Module):
    def __init__(self, chosen):
        super().__init__()
        self.chosen = chosen

    def forward(self, scores):
        rows, experts = scores.shape
        shares = torch.empty(rows, self.chosen, device=scores.device)
        places = torch.empty(rows, self.chosen, device=scores.device, dtype=torch.int64)
        block = triton.next_power_of_2(experts)
        choose_kernel[(rows,)](scores, shares, places, experts, CHOSEN=self.chosen, BLOCK=block)
        return shares, places

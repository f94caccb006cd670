"""Cumulative sums, products and maxima."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class NormalizedCumulativeSum(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=-1) / x.sum(dim=-1, keepdim=True)
""",
        ("torch.rand(6, 32) + 0.1",),
    ),
    M(
        """
class ReverseCumulativeSum(nn.Module):
    def forward(self, x):
        return x.flip(-1).cumsum(-1).flip(-1)
""",
        ("torch.randn(5, 40)",),
    ),
    M(
        """
class SurvivalProbability(nn.Module):
    def forward(self, hazard):
        return torch.cumprod(1 - torch.sigmoid(hazard), dim=-1)
""",
        ("torch.randn(7, 24)",),
    ),
    M(
        """
class RunningMean(nn.Module):
    def forward(self, x):
        count = torch.arange(1, x.shape[-1] + 1, device=x.device)
        return torch.cumsum(x, dim=-1) / count
""",
        ("torch.randn(8, 30)",),
    ),
    M(
        """
class ExclusiveScan(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1) - x
""",
        ("torch.randn(3, 20, 4)",),
    ),
)

"""Reductions over one or several axes."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class RootMeanSquare(nn.Module):
    def forward(self, x):
        return torch.sqrt(x.square().mean(dim=-1))
""",
        ("torch.randn(12, 60)",),
    ),
    M(
        """
class LogSumExpPool(nn.Module):
    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = sharpness

    def forward(self, x):
        return torch.logsumexp(self.sharpness * x, dim=1) / self.sharpness
""",
        ("torch.randn(9, 50)",),
        "sharpness=2.0",
    ),
    M(
        """
class RangeOverMean(nn.Module):
    def forward(self, x):
        return (x.amax(dim=-1) - x.amin(dim=-1)) / x.mean(dim=-1)
""",
        ("torch.rand(7, 45) + 0.5",),
    ),
    M(
        """
class TimeVariance(nn.Module):
    def forward(self, x):
        return x.var(dim=1, unbiased=False)
""",
        ("torch.randn(3, 32, 16)",),
    ),
    M(
        """
class ChannelEnergy(nn.Module):
    def forward(self, x):
        return (x * x).sum(dim=(2, 3))
""",
        ("torch.randn(3, 5, 9, 9)",),
    ),
    M(
        """
class LargestMargin(nn.Module):
    def forward(self, x):
        best, index = x.max(dim=-1)
        return best - x.mean(dim=-1), index
""",
        ("torch.randn(11, 37)",),
    ),
    M(
        """
class GeometricMean(nn.Module):
    def forward(self, x):
        return torch.exp(torch.log(x).mean(dim=-1))
""",
        ("torch.rand(10, 28) + 0.1",),
    ),
    M(
        """
class CountAbove(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return (x > self.threshold).sum(dim=-1)
""",
        ("torch.randn(14, 52)",),
        "threshold=0.5",
    ),
    M(
        """
class WeightedColumnMean(nn.Module):
    def forward(self, x, weight):
        return (x * weight).sum(dim=0) / weight.sum(dim=0)
""",
        ("torch.randn(30, 20)", "torch.rand(30, 1) + 0.1"),
    ),
)

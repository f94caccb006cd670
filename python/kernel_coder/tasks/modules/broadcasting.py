"""Broadcasting of vectors over tensors."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class OuterSum(nn.Module):
    def forward(self, a, b):
        return a[:, None] + b[None, :]
""",
        ("torch.randn(24)", "torch.randn(40)"),
    ),
    M(
        """
class ChannelAffine(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels))
        self.bias = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        return x * self.weight[None, :, None, None] + self.bias[None, :, None, None]
""",
        ("torch.randn(2, 6, 8, 8)",),
        "channels=6",
    ),
    M(
        """
class RowColumnGate(nn.Module):
    def forward(self, x, row, column):
        return x * torch.sigmoid(row)[:, None] * torch.sigmoid(column)
""",
        ("torch.randn(20, 30)", "torch.randn(20)", "torch.randn(30)"),
    ),
    M(
        """
class PairwiseAbsoluteDifference(nn.Module):
    def forward(self, x):
        return (x[:, :, None] - x[:, None, :]).abs()
""",
        ("torch.randn(3, 18)",),
    ),
    M(
        """
class FeatureModulation(nn.Module):
    def forward(self, x, gamma, beta):
        return (1 + gamma)[:, :, None] * x + beta[:, :, None]
""",
        ("torch.randn(4, 10, 21)", "torch.randn(4, 10)", "torch.randn(4, 10)"),
    ),
    M(
        """
class StandardizeByBuffers(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, features))
        self.register_buffer("std", torch.linspace(0.5, 2, features))

    def forward(self, x):
        return (x - self.mean) / self.std
""",
        ("torch.randn(13, 24)",),
        "features=24",
    ),
    M(
        """
class DistanceDecay(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        position = torch.arange(x.shape[-1], device=x.device)
        distance = (position[:, None] - position[None, :]).abs()
        return x * torch.exp(-self.rate * distance)
""",
        ("torch.randn(3, 20, 20)",),
        "rate=0.1",
    ),
)

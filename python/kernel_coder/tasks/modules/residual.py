"""Residual connections fused with what they add."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class ScaledResidual(nn.Module):
    def __init__(self, features, start):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((features,), start))

    def forward(self, x, branch):
        return x + self.gamma * branch
""",
        ("torch.randn(4, 9, 24)", "torch.randn(4, 9, 24)"),
        "features=24, start=0.1",
    ),
    M(
        """
class AddThenNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x, branch):
        total = x + branch
        return self.norm(total), total
""",
        ("torch.randn(3, 6, 40)", "torch.randn(3, 6, 40)"),
        "features=40",
    ),
    M(
        """
class HighwayMix(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.transform = nn.Linear(features, features)
        self.carry = nn.Linear(features, features)

    def forward(self, x):
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x
""",
        ("torch.randn(10, 20)",),
        "features=20",
    ),
    M(
        """
class ResidualRMSNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x, residual):
        x = x + residual
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
""",
        ("torch.randn(7, 56)", "torch.randn(7, 56)"),
        "features=56",
    ),
    M(
        """
class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduced):
        super().__init__()
        self.down = nn.Linear(channels, reduced)
        self.up = nn.Linear(reduced, channels)

    def forward(self, x):
        scale = torch.relu(self.down(x.mean(dim=(2, 3))))
        return x * torch.sigmoid(self.up(scale))[:, :, None, None]
""",
        ("torch.randn(2, 8, 6, 6)",),
        "channels=8, reduced=4",
    ),
    M(
        """
class BottleneckResidual(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.reduce = nn.Conv2d(channels, hidden, 1)
        self.expand = nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        return torch.relu(x + self.expand(torch.relu(self.reduce(x))))
""",
        ("torch.randn(2, 8, 5, 5)",),
        "channels=8, hidden=4",
    ),
)

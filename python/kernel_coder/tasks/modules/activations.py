"""Activation functions that torch does not offer under one name."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class SquaredReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** 2
""",
        ("torch.randn(4, 4, 4, 4)",),
    ),
    M(
        """
class BetaSwish(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)
""",
        ("torch.randn(10, 48)",),
        "channels=48",
    ),
    M(
        """
class ShiftedSoftplus(nn.Module):
    def forward(self, x):
        return F.softplus(x) - 0.6931471805599453
""",
        ("torch.randn(6, 70)",),
    ),
    M(
        """
class Snake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1, channels, 1), 0.5))

    def forward(self, x):
        return x + torch.sin(self.alpha * x) ** 2 / self.alpha
""",
        ("torch.randn(2, 6, 40)",),
        "channels=6",
    ),
    M(
        """
class BentIdentity(nn.Module):
    def forward(self, x):
        return (torch.sqrt(x * x + 1) - 1) / 2 + x
""",
        ("torch.randn(3, 65)",),
    ),
    M(
        """
class SplitSwiGLU(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value
""",
        ("torch.randn(9, 64)",),
    ),
    M(
        """
class TanhGatedUnit(nn.Module):
    def forward(self, x, gate):
        return torch.tanh(x) * torch.sigmoid(gate)
""",
        ("torch.randn(4, 6, 20)", "torch.randn(4, 6, 20)"),
    ),
    M(
        """
class ChannelELU(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        return torch.where(x > 0, x, self.alpha * (torch.exp(x) - 1))
""",
        ("torch.randn(7, 36)",),
        "channels=36",
    ),
    M(
        """
class HardGate(nn.Module):
    def forward(self, x):
        return x * torch.clamp(x / 6 + 0.5, 0, 1)
""",
        ("torch.randn(2, 5, 9, 9)",),
    ),
    M(
        """
class GeluTimesGate(nn.Module):
    def forward(self, x, gate):
        return F.gelu(x) * gate
""",
        ("torch.randn(8, 72)", "torch.randn(8, 72)"),
    ),
)

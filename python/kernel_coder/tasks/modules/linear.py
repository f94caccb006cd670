"""Linear layers with work after (or before) the product."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class LinearSquaredReLU(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.linear(x)).square()
""",
        ("torch.randn(16, 24)",),
        "inputs=24, outputs=40",
    ),
    M(
        """
class LinearResidualNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(x + self.linear(x))
""",
        ("torch.randn(4, 7, 32)",),
        "features=32",
    ),
    M(
        """
class GatedFeedForward(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))
""",
        ("torch.randn(3, 6, 16)",),
        "features=16, hidden=40",
    ),
    M(
        """
class TwoLayerTanh(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))
""",
        ("torch.randn(10, 12)",),
        "inputs=12, hidden=28, outputs=6",
    ),
    M(
        """
class LowRankUpdate(nn.Module):
    def __init__(self, features, rank, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) * 0.1)
        self.down = nn.Parameter(torch.randn(features, rank) * 0.1)
        self.up = nn.Parameter(torch.randn(rank, features) * 0.1)
        self.scale = scale

    def forward(self, x):
        return x @ self.weight + self.scale * ((x @ self.down) @ self.up)
""",
        ("torch.randn(9, 32)",),
        "features=32, rank=4, scale=2.0",
    ),
    M(
        """
class LinearRowMax(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return F.gelu(self.linear(x)).amax(dim=-1)
""",
        ("torch.randn(12, 20)",),
        "inputs=20, outputs=36",
    ),
    M(
        """
class CosineClassifier(nn.Module):
    def __init__(self, features, classes, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))
        self.scale = scale

    def forward(self, x):
        return self.scale * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))
""",
        ("torch.randn(8, 24)",),
        "features=24, classes=10, scale=16.0",
    ),
)

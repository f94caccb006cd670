"""Small convolutions with an epilogue."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class ConvTanhScale(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(outputs, 1, 1))

    def forward(self, x):
        return torch.tanh(self.conv(x)) * self.scale
""",
        ("torch.randn(2, 3, 8, 8)",),
        "inputs=3, outputs=6",
    ),
    M(
        """
class ConvGroupNormReLU(nn.Module):
    def __init__(self, inputs, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))
""",
        ("torch.randn(2, 4, 6, 6)",),
        "inputs=4, outputs=8, groups=2",
    ),
    M(
        """
class DepthwiseResidual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        return x + F.gelu(self.conv(x))
""",
        ("torch.randn(2, 5, 7, 7)",),
        "channels=5",
    ),
    M(
        """
class GatedConv1d(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, padding=kernel // 2)

    def forward(self, x):
        value, gate = self.conv(x).chunk(2, dim=1)
        return value * torch.sigmoid(gate)
""",
        ("torch.randn(2, 6, 24)",),
        "channels=6, kernel=5",
    ),
    M(
        """
class PointwiseConvPool(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        return torch.relu(self.conv(x)).mean(dim=(2, 3))
""",
        ("torch.randn(2, 6, 6, 6)",),
        "inputs=6, outputs=10",
    ),
    M(
        """
class TransposedConvSigmoid(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)

    def forward(self, x):
        return torch.sigmoid(self.conv(x))
""",
        ("torch.randn(2, 4, 5, 5)",),
        "inputs=4, outputs=3",
    ),
    M(
        """
class StridedConvClamp(nn.Module):
    def __init__(self, inputs, outputs, limit):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2)
        self.limit = limit

    def forward(self, x):
        return torch.clamp(self.conv(x), 0, self.limit) / self.limit
""",
        ("torch.randn(2, 3, 9, 9)",),
        "inputs=3, outputs=4, limit=0.5",
    ),
)

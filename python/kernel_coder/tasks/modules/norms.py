"""Layer, RMS, group and other normalisations."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class GainRMSNorm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.gain * (x * scale)
""",
        ("torch.randn(4, 6, 48)",),
        "features=48, eps=1e-6",
    ),
    M(
        """
class LayerNormReLU(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(x))
""",
        ("torch.randn(10, 40)",),
        "features=40",
    ),
    M(
        """
class GroupNormSiLU(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return F.silu(self.norm(x))
""",
        ("torch.randn(2, 8, 6, 6)",),
        "groups=4, channels=8",
    ),
    M(
        """
class SpatialStandardize(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=(2, 3), keepdim=True)
        centred = x - mean
        return centred / torch.sqrt((centred * centred).mean(dim=(2, 3), keepdim=True) + self.eps)
""",
        ("torch.randn(2, 4, 7, 7)",),
        "eps=1e-5",
    ),
    M(
        """
class UnitLength(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=-1)
""",
        ("torch.randn(15, 31)",),
    ),
    M(
        """
class ConditionalLayerNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features, elementwise_affine=False)

    def forward(self, x, scale, shift):
        return self.norm(x) * (1 + scale[:, None]) + shift[:, None]
""",
        ("torch.randn(3, 5, 32)", "torch.randn(3, 32)", "torch.randn(3, 32)"),
        "features=32",
    ),
    M(
        """
class PixelNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-8)
""",
        ("torch.randn(2, 6, 5, 5)",),
    ),
    M(
        """
class LogScaleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.log_scale.exp() / (x.norm(dim=-1, keepdim=True) + 1e-5)
""",
        ("torch.randn(8, 27)",),
    ),
)

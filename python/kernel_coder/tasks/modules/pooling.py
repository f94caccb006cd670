"""Pooling windows."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class PooledReLU(nn.Module):
    def forward(self, x):
        return torch.relu(F.max_pool2d(x, kernel_size=2))
""",
        ("torch.randn(2, 3, 8, 8)",),
    ),
    M(
        """
class LocalContrast(nn.Module):
    def forward(self, x):
        return x - F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
""",
        ("torch.randn(2, 3, 7, 7)",),
    ),
    M(
        """
class MeanMaxPool(nn.Module):
    def forward(self, x):
        return torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)
""",
        ("torch.randn(2, 5, 6, 6)",),
    ),
    M(
        """
class SequenceMaxGate(nn.Module):
    def forward(self, x):
        return F.max_pool1d(x, kernel_size=3, stride=1, padding=1) * torch.sigmoid(x)
""",
        ("torch.randn(3, 4, 25)",),
    ),
    M(
        """
class PowerPool(nn.Module):
    def forward(self, x):
        return torch.sqrt(F.avg_pool1d(x * x, kernel_size=4) + 1e-6)
""",
        ("torch.randn(2, 6, 32)",),
    ),
    M(
        """
class AdaptiveGridMean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(size)

    def forward(self, x):
        return self.pool(x).flatten(1)
""",
        ("torch.randn(2, 3, 8, 8)",),
        "size=2",
    ),
    M(
        """
class NearestUpsampleAdd(nn.Module):
    def forward(self, coarse, fine):
        return F.interpolate(coarse, scale_factor=2, mode="nearest") + fine
""",
        ("torch.randn(2, 4, 5, 5)", "torch.randn(2, 4, 10, 10)"),
    ),
)

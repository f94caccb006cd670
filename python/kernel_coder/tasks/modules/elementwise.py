"""Chains of element-wise arithmetic."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class ClampedAffine(nn.Module):
    def __init__(self, scale, shift, limit):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.limit = limit

    def forward(self, x):
        return torch.clamp(x * self.scale + self.shift, -self.limit, self.limit)
""",
        ("torch.randn(8, 96)",),
        "scale=1.5, shift=-0.25, limit=1.0",
    ),
    M(
        """
class CubicPolynomial(nn.Module):
    def __init__(self, a, b, c):
        super().__init__()
        self.coefficients = (a, b, c)

    def forward(self, x):
        a, b, c = self.coefficients
        return ((a * x + b) * x + c) * x
""",
        ("torch.randn(4, 4, 4, 4)",),
        "a=0.3, b=-1.1, c=0.7",
    ),
    M(
        """
class SafeReciprocal(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, y):
        return x / (y.abs() + self.eps)
""",
        ("torch.randn(16, 33)", "torch.randn(16, 33)"),
        "eps=0.1",
    ),
    M(
        """
class SignedSquareRoot(nn.Module):
    def forward(self, x):
        return torch.where(x < 0, -torch.sqrt(-x), torch.sqrt(x.abs()))
""",
        ("torch.randn(5, 7, 11)",),
    ),
    M(
        """
class Hypotenuse(nn.Module):
    def forward(self, a, b):
        return torch.sqrt(a * a + b * b)
""",
        ("torch.rand(300)", "torch.rand(300)"),
    ),
    M(
        """
class ThreeWayBlend(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, a, b, c):
        ab = a + self.weight * (b - a)
        return ab + self.weight * (c - ab)
""",
        ("torch.randn(6, 50)", "torch.randn(6, 50)", "torch.randn(6, 50)"),
        "weight=0.35",
    ),
    M(
        """
class LogOddsClip(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, p):
        p = p.clamp(self.eps, 1 - self.eps)
        return torch.log(p) - torch.log(1 - p)
""",
        ("torch.rand(12, 40)",),
        "eps=0.01",
    ),
    M(
        """
class ThresholdMix(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x, y):
        return torch.where(x > self.threshold, x * y, x - y)
""",
        ("torch.randn(4, 8, 16)", "torch.randn(4, 8, 16)"),
        "threshold=0.2",
    ),
)

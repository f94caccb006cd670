"""Batched matrix products with something fused around them."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class ScaledGram(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        flat = x.view(b, c, h * w)
        return torch.bmm(flat, flat.transpose(1, 2)) / (c * h * w)
""",
        ("torch.randn(2, 6, 5, 5)",),
    ),
    M(
        """
class SoftAlignment(nn.Module):
    def forward(self, queries, keys):
        return torch.softmax(torch.bmm(queries, keys.transpose(1, 2)), dim=-1)
""",
        ("torch.randn(3, 8, 12)", "torch.randn(3, 10, 12)"),
    ),
    M(
        """
class BilinearScore(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) * 0.2)

    def forward(self, a, b):
        return torch.tanh(torch.matmul(torch.matmul(a, self.weight), b.transpose(-1, -2)))
""",
        ("torch.randn(2, 7, 16)", "torch.randn(2, 9, 16)"),
        "features=16",
    ),
    M(
        """
class BatchedExperts(nn.Module):
    def __init__(self, experts, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, inputs, outputs) * 0.2)
        self.bias = nn.Parameter(torch.zeros(experts, 1, outputs))

    def forward(self, x):
        return torch.relu(torch.bmm(x, self.weight) + self.bias)
""",
        ("torch.randn(4, 6, 12)",),
        "experts=4, inputs=12, outputs=20",
    ),
    M(
        """
class AttentivePool(nn.Module):
    def forward(self, x, scores):
        weight = torch.softmax(scores, dim=-1)
        return torch.bmm(weight.unsqueeze(1), x).squeeze(1)
""",
        ("torch.randn(4, 9, 16)", "torch.randn(4, 9)"),
    ),
    M(
        """
class CosineSimilarityMatrix(nn.Module):
    def forward(self, a, b):
        a = a / a.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        b = b / b.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return torch.bmm(a, b.transpose(1, 2))
""",
        ("torch.randn(2, 6, 18)", "torch.randn(2, 8, 18)"),
    ),
)

"""Softmax and log-softmax with something around them."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class TemperatureSoftmax(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return torch.softmax(x / self.temperature, dim=-1)
""",
        ("torch.randn(12, 50)",),
        "temperature=0.7",
    ),
    M(
        """
class MaskedSoftmax(nn.Module):
    def forward(self, scores, mask):
        return torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1)
""",
        ("torch.randn(4, 9, 17)", "torch.rand(4, 9, 17) > 0.3"),
    ),
    M(
        """
class CategoricalEntropy(nn.Module):
    def forward(self, logits):
        logp = torch.log_softmax(logits, dim=-1)
        return -(logp.exp() * logp).sum(dim=-1)
""",
        ("torch.randn(10, 33)",),
    ),
    M(
        """
class CausalSoftmax(nn.Module):
    def forward(self, scores):
        n = scores.shape[-1]
        future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(dim=-1)
""",
        ("torch.randn(3, 16, 16)",),
    ),
    M(
        """
class ChannelSoftmin(nn.Module):
    def forward(self, x):
        return torch.softmax(-x, dim=1)
""",
        ("torch.randn(2, 7, 6, 6)",),
    ),
    M(
        """
class DoubleSoftmaxProduct(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1) * torch.softmax(x, dim=2)
""",
        ("torch.randn(3, 12, 20)",),
    ),
    M(
        """
class ExpectedPosition(nn.Module):
    def forward(self, heat):
        position = torch.arange(heat.shape[-1], dtype=heat.dtype, device=heat.device)
        return (torch.softmax(heat, dim=-1) * position).sum(dim=-1)
""",
        ("torch.randn(8, 40)",),
    ),
)

"""Small attention blocks, written out."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class DotProductAttention(nn.Module):
    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return torch.matmul(torch.softmax(scores, dim=-1), v)
""",
        ("torch.randn(2, 3, 8, 16)", "torch.randn(2, 3, 10, 16)", "torch.randn(2, 3, 10, 16)"),
    ),
    M(
        """
class CausalSelfAttention(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, features, bias=False)
        self.value = nn.Linear(features, features, bias=False)

    def forward(self, x):
        n = x.shape[1]
        scores = torch.bmm(self.query(x), self.key(x).transpose(1, 2)) * x.shape[-1] ** -0.5
        allowed = torch.arange(n, device=x.device)
        scores = scores.masked_fill(allowed[None, :] > allowed[:, None], float("-inf"))
        return torch.bmm(scores.softmax(dim=-1), self.value(x))
""",
        ("torch.randn(2, 12, 16)",),
        "features=16",
    ),
    M(
        """
class RotaryEmbedding(nn.Module):
    def __init__(self, features, base):
        super().__init__()
        rate = base ** (-torch.arange(0, features, 2).float() / features)
        self.register_buffer("rate", rate)

    def forward(self, x):
        position = torch.arange(x.shape[1], device=x.device)
        angle = position[:, None] * self.rate[None, :]
        even, odd = x.chunk(2, dim=-1)
        cos, sin = torch.cos(angle), torch.sin(angle)
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
""",
        ("torch.randn(3, 10, 16)",),
        "features=16, base=10000.0",
    ),
    M(
        """
class KernelizedAttention(nn.Module):
    def forward(self, q, k, v):
        q = torch.relu(q) + 1
        k = torch.relu(k) + 1
        context = torch.bmm(k.transpose(1, 2), v)
        scale = torch.bmm(q, k.sum(dim=1).unsqueeze(2))
        return torch.bmm(q, context) / scale
""",
        ("torch.randn(2, 9, 12)", "torch.randn(2, 11, 12)", "torch.randn(2, 11, 12)"),
    ),
    M(
        """
class SlopedBiasScores(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slope", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, scores):
        position = torch.arange(scores.shape[-1], device=scores.device)
        distance = position[None, :] - position[:, None]
        return torch.softmax(scores + self.slope[:, None, None] * distance, dim=-1)
""",
        ("torch.randn(2, 4, 11, 11)",),
        "heads=4",
    ),
    M(
        """
class AdditiveAttention(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.query = nn.Linear(features, features)
        self.key = nn.Linear(features, features)
        self.score = nn.Parameter(torch.randn(features))

    def forward(self, query, keys):
        hidden = torch.tanh(self.query(query)[:, None] + self.key(keys))
        weight = torch.softmax((hidden * self.score).sum(-1), dim=-1)
        return (weight[:, :, None] * keys).sum(1)
""",
        ("torch.randn(3, 16)", "torch.randn(3, 7, 16)"),
        "features=16",
    ),
)

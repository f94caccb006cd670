"""Gathers and embeddings."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class TokenPositionEmbedding(nn.Module):
    def __init__(self, vocabulary, length, features):
        super().__init__()
        self.token = nn.Embedding(vocabulary, features)
        self.position = nn.Embedding(length, features)

    def forward(self, ids):
        position = torch.arange(ids.shape[1], device=ids.device)
        return self.token(ids) + self.position(position)
""",
        ("torch.randint(0, 50, (3, 12))",),
        "vocabulary=50, length=16, features=24",
    ),
    M(
        """
class GatherColumns(nn.Module):
    def forward(self, x, index):
        return torch.gather(x, 1, index) * 2
""",
        ("torch.randn(8, 20)", "torch.randint(0, 20, (8, 5))"),
    ),
    M(
        """
class SelectRowsScaled(nn.Module):
    def forward(self, table, rows, scale):
        return table[rows] * scale[:, None]
""",
        ("torch.randn(30, 14)", "torch.randint(0, 30, (11,))", "torch.randn(11)"),
    ),
    M(
        """
class EmbeddingBagMean(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, ids):
        return self.table(ids).mean(dim=1)
""",
        ("torch.randint(0, 40, (5, 9))",),
        "vocabulary=40, features=18",
    ),
    M(
        """
class ScaledEmbeddingNorm(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self.norm = nn.LayerNorm(features)
        self.scale = math.sqrt(features)

    def forward(self, ids):
        return self.norm(self.table(ids) * self.scale)
""",
        ("torch.randint(0, 32, (4, 7))",),
        "vocabulary=32, features=16",
    ),
    M(
        """
class OneHotSmooth(nn.Module):
    def __init__(self, classes, smoothing):
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing

    def forward(self, target):
        classes = torch.arange(self.classes, device=target.device)
        hit = (target[:, None] == classes).float()
        return hit * (1 - self.smoothing) + self.smoothing / self.classes
""",
        ("torch.randint(0, 10, (16,))",),
        "classes=10, smoothing=0.1",
    ),
    M(
        """
class LastValidToken(nn.Module):
    def forward(self, x, lengths):
        rows = torch.arange(x.shape[0], device=x.device)
        return torch.tanh(x[rows, lengths - 1])
""",
        ("torch.randn(5, 8, 12)", "torch.randint(1, 9, (5,))"),
    ),
)

"""Losses written out."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class CharbonnierLoss(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, prediction, target):
        return torch.sqrt((prediction - target) ** 2 + self.eps**2).mean()
""",
        ("torch.randn(8, 40)", "torch.randn(8, 40)"),
        "eps=0.001",
    ),
    M(
        """
class FocalLoss(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, logits, target):
        p = torch.sigmoid(logits)
        p_true = target * p + (1 - target) * (1 - p)
        return (-self.alpha * (1 - p_true) ** 2 * torch.log(p_true + 1e-7)).mean()
""",
        ("torch.randn(6, 30)", "(torch.rand(6, 30) > 0.5).float()"),
        "alpha=0.25",
    ),
    M(
        """
class SoftDiceLoss(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, mask):
        p = torch.sigmoid(logits).flatten(1)
        mask = mask.flatten(1)
        overlap = 2 * (p * mask).sum(dim=1) + self.smooth
        return (1 - overlap / (p.sum(dim=1) + mask.sum(dim=1) + self.smooth)).mean()
""",
        ("torch.randn(4, 1, 8, 8)", "(torch.rand(4, 1, 8, 8) > 0.5).float()"),
        "smooth=1.0",
    ),
    M(
        """
class LogCoshLoss(nn.Module):
    def forward(self, prediction, target):
        error = prediction - target
        return (error + F.softplus(-2 * error) - 0.6931471805599453).mean()
""",
        ("torch.randn(10, 25)", "torch.randn(10, 25)"),
    ),
    M(
        """
class DistillationKL(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        log_q = torch.log_softmax(student / self.temperature, dim=-1)
        log_p = torch.log_softmax(teacher / self.temperature, dim=-1)
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1).mean()
""",
        ("torch.randn(7, 20)", "torch.randn(7, 20)"),
        "temperature=2.0",
    ),
    M(
        """
class SmoothedCrossEntropy(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        logp = torch.log_softmax(logits, dim=-1)
        picked = -logp.gather(1, target[:, None]).squeeze(1)
        return ((1 - self.smoothing) * picked - self.smoothing * logp.mean(dim=-1)).mean()
""",
        ("torch.randn(9, 12)", "torch.randint(0, 12, (9,))"),
        "smoothing=0.1",
    ),
    M(
        """
class GaussianNegativeLogLikelihood(nn.Module):
    def forward(self, mean, log_variance, target):
        return 0.5 * (log_variance + (target - mean) ** 2 * torch.exp(-log_variance)).mean(dim=-1)
""",
        ("torch.randn(6, 22)", "torch.randn(6, 22)", "torch.randn(6, 22)"),
    ),
    M(
        """
class PairwiseMarginLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, chosen, rejected):
        return torch.relu(self.margin - (chosen[:, None] - rejected[None, :])).mean()
""",
        ("torch.randn(16)", "torch.randn(18)"),
        "margin=0.5",
    ),
    M(
        """
class PreferenceLoss(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, chosen, rejected):
        return -F.logsigmoid(self.beta * (chosen - rejected)).mean()
""",
        ("torch.randn(64)", "torch.randn(64)"),
        "beta=0.3",
    ),
    M(
        """
class VariationalKL(nn.Module):
    def forward(self, mean, log_variance):
        return -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp(), dim=-1)
""",
        ("torch.randn(5, 36)", "torch.randn(5, 36)"),
    ),
)

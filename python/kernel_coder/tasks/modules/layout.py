"""Transposes, permutations and rearrangements."""

from kernel_coder.tasks.modules import ModuleSource as M

MODULES = (
    M(
        """
class SymmetricPart(nn.Module):
    def forward(self, x):
        return 0.5 * (x + x.transpose(1, 2))
""",
        ("torch.randn(3, 18, 18)",),
    ),
    M(
        """
class ChannelsLastScale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        return (x.permute(0, 2, 3, 1) * self.scale).contiguous()
""",
        ("torch.randn(2, 6, 5, 7)",),
        "channels=6",
    ),
    M(
        """
class SpaceToDepth(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.block
        x = x.view(b, c, h // s, s, w // s, s)
        return x.permute(0, 1, 3, 5, 2, 4).reshape(b, c * s * s, h // s, w // s)
""",
        ("torch.randn(2, 3, 8, 8)",),
        "block=2",
    ),
    M(
        """
class SplitHeads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2).contiguous()
""",
        ("torch.randn(2, 9, 32)",),
        "heads=4",
    ),
    M(
        """
class ChannelShuffle(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.view(b, self.groups, c // self.groups, h, w)
        return x.transpose(1, 2).reshape(b, c, h, w)
""",
        ("torch.randn(2, 6, 4, 4)",),
        "groups=3",
    ),
    M(
        """
class MirrorConcat(nn.Module):
    def forward(self, x):
        return torch.cat([x, x.flip(-1)], dim=-1)
""",
        ("torch.randn(6, 15)",),
    ),
    M(
        """
class CyclicDifference(nn.Module):
    def forward(self, x):
        return x - torch.cat([x[:, -1:], x[:, :-1]], dim=1)
""",
        ("torch.randn(5, 26)",),
    ),
    M(
        """
class PadAndShift(nn.Module):
    def forward(self, x):
        return F.pad(x, (1, 0))[:, :-1] + x
""",
        ("torch.randn(7, 29)",),
    ),
)

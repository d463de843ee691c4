"""Rotary positions through complex numbers, one pair at a time: the oracle of two exercises."""
import torch


def pairs(width, style):
    """The two channels of every pair."""
    half = width // 2
    return [(i, i + half) if style == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def rotate(x, positions, base=10000.0, style="half"):
    """[B,H,T,D] at positions [T] or [B,T]."""
    columns = {}
    for i, (a, b) in enumerate(pairs(x.shape[-1], style)):
        angle = positions.double() * base ** (-2 * i / x.shape[-1])
        angle = angle[:, None] if angle.dim() == 2 else angle
        turned = torch.complex(x[..., a].double(), x[..., b].double()) * torch.polar(torch.ones_like(angle), angle)
        columns[a], columns[b] = turned.real, turned.imag
    return torch.stack([columns[c] for c in range(x.shape[-1])], -1).to(x.dtype)

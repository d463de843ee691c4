"""What the two absorptions share: coded maps, and a factor read back from an answer."""
import torch

from ... import expect


def coded_keys(heads, width, latent, model):
    """(W_Q coded by address, W_UK that links channel d of every head to latent channel d): [H·D,M], [H·D,C]."""
    w_q = 1 + torch.arange(heads * width * model, dtype=torch.float64).reshape(-1, model)
    return w_q, torch.eye(width, latent, dtype=torch.float64).repeat(heads, 1)


def coded_values(heads, width, latent, model):
    """(W_O coded by address, W_UV that links latent channel d to channel d of every head): [M,H·D_v], [H·D_v,C]."""
    w_o = 1 + torch.arange(model * heads * width, dtype=torch.float64).reshape(model, -1)
    return w_o, torch.eye(width, latent, dtype=torch.float64).repeat(heads, 1)


def factor_note(got, want):
    """Mismatch when the answer is the contract's times a number."""
    size = (want.double() ** 2).sum()
    factor = ((got.double() * want.double()).sum() / size).item()
    scaled = torch.allclose(got.double(), factor * want.double(), atol=1e-9)
    if scaled and factor > 1e-6 and abs(factor - 1) > 1e-4:
        raise expect.Mismatch(f"every entry is {factor:.4g} times that of the contract, 1/{1 / factor:.4g} = "
                              f"1/√{1 / factor**2:.4g}")


def compare(lab, name, oracle, names, *args):
    got, want = lab.call(name, *args), oracle(*args)
    expect.shape(got, want.shape, "absorbed")
    expect.dtype(got, want.dtype, "absorbed")
    factor_note(got, want)
    expect.close(got, want, "absorbed", names)

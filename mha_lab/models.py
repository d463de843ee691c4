"""Given: the attention sizes of published models, as their configurations state them. Plain numbers with their source.

Units: layers, heads and tokens are counted; widths are channels. Nothing here is measured.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedModel:
    """What one model's configuration says about its attention.

    layers: L. hidden: M. heads: H. kv_heads: G. head_dim: D of the keys that a cache of keys and values would hold.
    v_head_dim: D_v. context: tokens it was published for. window: keys that a local layer sees, None where every layer
    sees everything; local_layers: how many are local. latent, rope_dim: of multi-head latent attention, 0 elsewhere.
    source: where the numbers stand.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    context: int
    source: str
    window: int | None = None
    local_layers: int = 0
    latent: int = 0
    rope_dim: int = 0

    def config(self) -> dict[str, int]:
        """The mapping that `kv_cache_bytes` of session 06 reads."""
        return {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "kv_heads": self.kv_heads,
                "head_dim": self.head_dim, "v_head_dim": self.v_head_dim}


_HUB = "config.json of huggingface.co/"
_MODELS = (
    PublishedModel("GPT-2 small", 12, 768, 12, 12, 64, 64, 1024, _HUB + "openai-community/gpt2"),
    PublishedModel("Llama-2-7B", 32, 4096, 32, 32, 128, 128, 4096, _HUB + "meta-llama/Llama-2-7b-hf"),
    PublishedModel("Llama-2-70B", 80, 8192, 64, 8, 128, 128, 4096, _HUB + "meta-llama/Llama-2-70b-hf"),
    PublishedModel("Llama-3-8B", 32, 4096, 32, 8, 128, 128, 8192, _HUB + "meta-llama/Meta-Llama-3-8B"),
    PublishedModel("Llama-3-70B", 80, 8192, 64, 8, 128, 128, 8192, _HUB + "meta-llama/Meta-Llama-3-70B"),
    PublishedModel("Gemma-2B", 18, 2048, 8, 1, 256, 256, 8192, _HUB + "google/gemma-2b"),
    PublishedModel("Gemma-7B", 28, 3072, 16, 16, 256, 256, 8192, _HUB + "google/gemma-7b"),
    PublishedModel("Gemma-2-2B", 26, 2304, 8, 4, 256, 256, 8192, _HUB + "google/gemma-2-2b", window=4096,
                   local_layers=13),
    PublishedModel("Mistral-7B v0.1", 32, 4096, 32, 8, 128, 128, 32768, _HUB + "mistralai/Mistral-7B-v0.1", window=4096,
                   local_layers=32),
    PublishedModel("Qwen2.5-7B", 28, 3584, 28, 4, 128, 128, 131072, _HUB + "Qwen/Qwen2.5-7B"),
    PublishedModel("Qwen3-0.6B", 28, 1024, 16, 8, 128, 128, 40960, _HUB + "Qwen/Qwen3-0.6B"),
    PublishedModel("DeepSeek-V2", 60, 5120, 128, 128, 192, 128, 163840, _HUB + "deepseek-ai/DeepSeek-V2", latent=512,
                   rope_dim=64),
)
PUBLISHED: dict[str, PublishedModel] = {model.name: model for model in _MODELS}

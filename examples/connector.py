"""A connector in three lines, on CPU tensors: `python examples/connector.py` (needs torch, and no engine).

The configuration below has the names and fields of vLLM's own; in a connector it is the one that the engine passes.
The backend pages its keys and values by 64 tokens, where a block of the scheduler has 256.
"""

from __future__ import annotations

from types import SimpleNamespace

import kvlayout


class FullAttentionSpec(SimpleNamespace):
    """What vLLM calls a group of full-attention layers: read by its class name and its fields."""


def example_config() -> SimpleNamespace:
    """Return a configuration of 3 blocks and one group."""
    spec = FullAttentionSpec(block_size=256, num_kv_heads=2, head_size=64, dtype="bfloat16", page_size_bytes=131_072)
    group = SimpleNamespace(layer_names=["model.layers.0.self_attn.attn"], kv_cache_spec=spec)
    return SimpleNamespace(num_blocks=3, kv_cache_tensors=[], kv_cache_groups=[group])


def main() -> None:
    """Register a cache, and show what a store is to move for block 1."""
    import torch

    layer = "model.layers.0.self_attn.attn"
    kv_cache_config, layout_hints = example_config(), {"kv_layout": "NHD"}
    kv_caches = {layer: torch.zeros(3 * 4, 2, 64, 128, dtype=torch.bfloat16)}

    applied = kvlayout.plan_then_apply(kv_cache_config, kv_caches, layout_hints, engine_version="0.32.0")
    view, group = applied.views[layer], applied.plan.groups[0]

    if isinstance(view, torch.Tensor):  # a recurrent layer that is left as it is would be a list of them
        print(f"registered {list(kv_caches[layer].shape)}, viewed as {list(view.shape)}")
        print(f"{group.block_tokens} tokens and {group.page_bytes} bytes a block; block 1 is view[1]")
        view[1] = 1.0
        print(f"kernel pages that it wrote: {kv_caches[layer].sum((1, 2, 3)).nonzero().flatten().tolist()}")


if __name__ == "__main__":
    main()

"""State spaces with heads (Mamba2): alone, or with attention between (Nemotron-H, Bamba, Granite hybrid)."""

from __future__ import annotations

from typing import Final

from kvlayout.cache.strict_json import SkipError, show
from kvlayout.offline.config import MAX_LAYERS, Config
from kvlayout.offline.families.heads import Heads, heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, LINEAR, layer_types
from kvlayout.offline.model import Layer, Mamba2, StateLayer

__all__ = ["MAMBA2", "bamba", "granite", "mamba2", "named_space", "nemotron"]

#: The engine's word for the backend.
MAMBA2: Final = "MAMBA2"

_LETTERS: Final = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_WORDS: Final = (LINEAR, FULL, "mlp", "moe")


def mamba2(config: Config, prefix: str) -> Layers:
    """Return a state space for each layer."""
    count = config.layers()
    channels = config.whole("expand") * config.whole("hidden_size")
    size = config.whole("head_dim")
    space = _checked(
        config,
        Mamba2(
            channels,
            config.whole("n_groups"),
            config.whole("num_heads"),
            size,
            config.whole("state_size"),
            config.whole("conv_kernel", least=2),
        ),
        "num_heads",
    )
    return Layers(tuple(StateLayer(f"{prefix}.{i}.mixer", MAMBA2, space) for i in range(count)), count)


def nemotron(config: Config, prefix: str) -> Layers:
    """Return the layers that ``layers_block_type`` or ``hybrid_override_pattern`` spells; MLPs have no cache."""
    full = heads(config)
    size = config.whole("mamba_head_dim")
    count = config.whole("mamba_num_heads")
    space = Mamba2(
        count * size,
        _either(config, "mamba_n_groups", "n_groups"),
        count,
        size,
        config.whole("ssm_state_size"),
        _either(config, "mamba_d_conv", "conv_kernel", least=2),
    )
    window = config.length("sliding_window", least=0) or None
    kinds = _spelled(config)
    made: list[Layer] = []
    for i, kind in enumerate(kinds):
        if kind == LINEAR:
            made.append(StateLayer(f"{prefix}.{i}.mixer", MAMBA2, space))
        elif kind == FULL:
            made.append(full.layer(f"{prefix}.{i}.mixer.attn", window))
    return Layers(tuple(made), len(kinds))


def bamba(config: Config, prefix: str) -> Layers:
    """Return state spaces, and attention in the layers of ``attn_layer_indices``."""
    count, full = config.layers(), heads(config)
    listed = frozenset(config.wholes("attn_layer_indices") or ())
    kinds = tuple(FULL if i in listed else LINEAR for i in range(count))
    return _between(prefix, kinds, full, named_space(config), "attn")


def granite(config: Config, prefix: str) -> Layers:
    """Return state spaces, and attention where ``layer_types`` says."""
    count, full = config.layers(), heads(config, own_size=False)
    kinds = layer_types(config, count, (LINEAR, FULL)) or (LINEAR,) * count
    return _between(prefix, kinds, full, named_space(config), "self_attn.attn")


def _between(prefix: str, kinds: tuple[str, ...], full: Heads, space: Mamba2, module: str) -> Layers:
    made: tuple[Layer, ...] = tuple(
        full.layer(f"{prefix}.{i}.{module}") if kind == FULL else StateLayer(f"{prefix}.{i}.mixer", MAMBA2, space)
        for i, kind in enumerate(kinds)
    )
    return Layers(made, len(kinds))


def named_space(config: Config, width: int | None = None) -> Mamba2:
    """Return the state space of a config that spells it ``mamba_n_heads``, ``mamba_d_head``, ..."""
    channels = width or config.whole("mamba_expand") * config.whole("hidden_size")
    count = config.whole("mamba_n_heads")
    auto = config.get("mamba_d_head") in (None, "auto")
    size = max(channels // count, 1) if auto else config.whole("mamba_d_head")
    space = Mamba2(
        channels,
        config.whole("mamba_n_groups"),
        count,
        size,
        config.whole("mamba_d_state"),
        config.whole("mamba_d_conv", least=2),
    )
    return _checked(config, space, "mamba_n_heads")


def _checked(config: Config, space: Mamba2, key: str) -> Mamba2:
    if space.heads * space.head_dim != space.channels and not config.faults.errors:
        config.fault(key, f"heads of {space.head_dim} that make up {space.channels} channels")
    return space


def _either(config: Config, old: str, new: str, least: int = 1) -> int:
    return config.whole(old if config.has(old) else new, least=least)


def _spelled(config: Config) -> tuple[str, ...]:
    for key in ("layers_block_type", "layer_types"):
        named = config.texts(key)
        if named is not None:
            if len(named) > MAX_LAYERS:
                config.fault(key, f"at most {MAX_LAYERS} layers")
                raise SkipError
            return layer_types(config, len(named), _WORDS, key) or ()
    if not config.has("hybrid_override_pattern"):
        return (LINEAR, "moe", FULL, "mlp")
    pattern = config.text("hybrid_override_pattern")
    if not 0 < len(pattern) <= MAX_LAYERS:
        config.fault("hybrid_override_pattern", f"1 to {MAX_LAYERS} letters, one a layer")
        raise SkipError
    strange = next((i for i, letter in enumerate(pattern) if letter not in _LETTERS), None)
    if strange is not None:
        place = f"{config.at('hybrid_override_pattern')}[{strange}]"
        config.faults.note(place, "one of M, *, -, E", show(pattern[strange]))
        raise SkipError
    return tuple(_LETTERS[letter] for letter in pattern)

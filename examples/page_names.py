"""What a page is called, and which pages a prompt needs: the part of `page_store_connector.py` without tensors.

Also what its two halves, in the scheduler and in each worker, tell each other of pages.

A page is what one rank keeps of one block of one group: the blocks of its layers, one behind the other. Its name is a
digest of the tokens from the start of the prompt to the end of the block, and of the group's tag: the model and its
weights, the rank, the layers and the plan's fingerprint. Whatever would give the same tokens another page is in there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig

    from kvlayout.plans import GroupPlan

__all__ = ["Group", "Job", "Prefix", "Served", "Work", "digest", "model_digest"]

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
WINDOWED = ("sliding_window", "sliding_window_mla", "chunked_local_attention")


@dataclass(frozen=True)
class Group:
    """What the scheduler asks of a group on one rank: only workers have tensors, so only they have a plan.

    Attributes:
        index: the group's position in the engine's list.
        tag: the part of a page's name that is not of its tokens.
        block_tokens: tokens a block.
        recurrent: a block is the state after its last token, and earlier ones are not kept.
        window: tokens that are looked back at, and all that the engine keeps; `None` for all of them.
    """

    index: int
    tag: bytes
    block_tokens: int
    recurrent: bool
    window: int | None

    @classmethod
    def of(cls, group: GroupPlan, model: bytes) -> Group:
        """Return a group that is served."""
        tag = digest(model, group.index, *group.layers, group.fingerprint, group.block_tokens)
        window = group.window_tokens if group.kind in WINDOWED else None
        return cls(group.index, tag, group.block_tokens or 0, group.recurrent, window)

    def name(self, key: bytes) -> bytes:
        """Return the name of the page that ends where a prefix does."""
        return blake2b(key + self.tag, digest_size=32).digest()

    def blocks(self, start: int, end: int) -> range:
        """Return the blocks that end behind `start`, and at `end` or before."""
        return range(start // self.block_tokens, end // self.block_tokens)

    def needed(self, start: int, end: int) -> range:
        """Return the blocks without which nothing goes on at `end`, where what comes before `start` is there.

        vLLM allocates these, or fewer, and puts the null block in the place of all others.
        """
        reach = self.block_tokens if self.recurrent else end if self.window is None else self.window
        return self.blocks(max(start, end - reach), end)

    def completed(self, start: int, end: int, prompt: int) -> range:
        """Return the blocks of a prompt that a step from `start` to `end` leaves in the cache."""
        if self.recurrent:
            return self.blocks(end - 1, end) if end <= prompt else range(0)
        return self.blocks(start, min(end, prompt))


@dataclass(frozen=True)
class Served(KVConnectorHandshakeMetadata):
    """What a rank tells the scheduler when the engine starts: its groups, or none if it can't serve the model."""

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Job:
    """Blocks of a request that move: of each group, the keys of the prefixes that they end, and their ids."""

    request_id: str
    blocks: dict[int, list[tuple[bytes, int]]]


@dataclass
class Work(KVConnectorMetadata):
    """What a step loads and stores."""

    loads: list[Job] = field(default_factory=list)
    stores: list[Job] = field(default_factory=list)


class Prefix:
    """A key for every prefix of a prompt that is a multiple of `unit` tokens: each has all before it in it."""

    def __init__(self, tokens: Sequence[int], salt: bytes, unit: int) -> None:
        self.unit, self.keys = unit, [salt]
        numbers = array("q", tokens)
        for end in range(unit, len(numbers) + 1, unit):
            key = blake2b(self.keys[-1] + numbers[end - unit : end].tobytes(), digest_size=32)
            self.keys.append(key.digest())

    def until(self, end: int) -> bytes:
        """Return the key of the first `end` tokens."""
        return self.keys[end // self.unit]


def digest(*parts: object) -> bytes:
    """Return a digest of values by their texts, each with its length, so that no two lists run together."""
    texts = [str(part).encode() for part in parts]
    return blake2b(b"".join(len(text).to_bytes(8, "little") + text for text in texts), digest_size=32).digest()


def model_digest(config: VllmConfig) -> bytes:
    """Return a digest of what gives the same tokens other pages, apart from what the plan knows.

    Weights on disk count by their names, sizes and times: whoever puts others there gets other names. Weights that
    are exchanged in a running engine are beyond this; vLLM then resets its connector's cache.
    """
    model, parallel = config.model_config, config.parallel_config
    folder = Path(model.model)
    found = [path for path in folder.iterdir() if path.suffix in WEIGHTS] if folder.is_dir() else []
    weights = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found)
    commit = getattr(model.hf_config, "_commit_hash", None)
    named = (model.model, model.revision, commit, weights, config.load_config.load_format, model.seed)
    kept = (model.dtype, model.quantization, config.cache_config.cache_dtype, model.hf_config.to_json_string())
    ranks = (parallel.rank, parallel.world_size, parallel.tensor_parallel_size, parallel.decode_context_parallel_size)
    return digest(vllm.__version__, *named, *kept, *ranks)

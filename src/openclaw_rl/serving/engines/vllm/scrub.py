"""Writing finite numbers over vLLM's whole KV cache, after weights that gave NaN have written theirs into it.

Attention reads whole blocks and masks what is not yet written by multiplying with zero, and NaN times zero is NaN: so
a block that a broken version has used breaks the next request that gets it, of whatever version, which writes NaN in
its turn. vLLM clears blocks for models with recurrent layers only. A prompt that fills a block exactly writes every
slot before any is read; as many of them as there are blocks pass through all that are free, for those that were freed
last are used last. Blocks in use are clean, or their requests fail and the cache is scrubbed once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from openclaw_rl.serving.engines.protocol import EngineError
from openclaw_rl.serving.engines.vllm.api import VllmApi

logger = logging.getLogger(__name__)

_AT_ONCE = 4
_TOKEN = 1


async def scrub(api: VllmApi, model: str) -> None:
    """Pass through every free block of the cache; `model` is the name of finite weights.

    Raises:
        EngineError: vLLM does not say how large its cache is, or answers no more.
    """
    cache = await api.cache_size()
    if cache is None:
        raise EngineError("vLLM does not say how large its cache is")
    began, run = time.monotonic(), uuid.uuid4().hex
    left = iter(range(cache.blocks))

    async def worker() -> None:
        for number in left:
            sampling = {"temperature": 0.0, "max_tokens": 1, "detokenize": False}
            ids = [_TOKEN] * cache.block_tokens
            body = {"model": model, "token_ids": ids, "sampling_params": sampling, "cache_salt": f"{run}.{number}"}
            await api.ask_whole(body)

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    logger.warning("vLLM's cache of %d blocks was scrubbed in %.1f s", cache.blocks, time.monotonic() - began)

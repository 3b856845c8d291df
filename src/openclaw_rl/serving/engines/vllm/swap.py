"""The one model that a vLLM holds: swapped in place while its streams wait, and put back where that fails."""

from __future__ import annotations

import logging
from pathlib import Path

from openclaw_rl.serving.engines.protocol import EngineError, EngineUnavailable
from openclaw_rl.serving.engines.vllm.api import VllmApi
from openclaw_rl.serving.engines.vllm.versions import LoadedVersions

logger = logging.getLogger(__name__)


class ModelSwap:
    """Swaps whole models, one at a time: its caller sees to that."""

    def __init__(self, api: VllmApi, base: Path) -> None:
        """`base`: the directory of the weights that vLLM was started with."""
        self._api = api
        self._base = self._holds = base
        self._maybe_paused = False

    def started_anew(self) -> None:
        """VLLM holds the weights that it was started with."""
        self._holds = self._base

    @property
    def maybe_paused(self) -> bool:
        """Whether vLLM may wait for a word to go on that did not reach it."""
        return self._maybe_paused

    async def go_on(self) -> None:
        """Let a vLLM go on that may be paused.

        Raises:
            EngineUnavailable: it was not told.
        """
        if not self._maybe_paused:
            return
        try:
            await self._api.resume()
        except EngineError as error:
            raise EngineUnavailable(f"vLLM is paused, and cannot be told to go on: {error}") from error
        self._maybe_paused = False

    async def swap(self, versions: LoadedVersions, version: int, directory: Path, label: str) -> None:
        """Pause, read the weights in place, name them, go on. All tokens that arrive before the end of this are the
        old model's.

        Requests keep what they have read of their prompts, by the old weights: reading it again would be the pause
        that nobody should notice. Weights that vLLM does not call by their name are no success: tokens would be told
        under one name and recorded under another.
        """
        self._maybe_paused = True
        try:
            await self._api.pause()
            settled = False
            try:
                await self._read(directory, label)
                versions.replace_model(version, label)
                self._holds, settled = directory, True
            except EngineError as error:
                settled = await self._put_back(versions)
                raise EngineError(f"vLLM could not take the weights of version {version}: {error}") from error
            finally:
                if not settled:
                    versions.replace_model(None, "unknown")
        finally:
            await self.go_on()

    async def _read(self, directory: Path, label: str) -> None:
        await self._api.reload_weights(directory)
        await self._api.label_weights(label)

    async def _put_back(self, versions: LoadedVersions) -> bool:
        """The weights from before a swap that failed; if they cannot be had either, the model is nobody's (False)."""
        if versions.model_version is None:
            return False
        try:
            await self._read(self._holds, versions.model_label)
        except EngineError as error:
            logger.error("vLLM holds weights of no known version, until one is loaded (%s)", error.code)
            return False
        return True

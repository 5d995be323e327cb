"""A client of vLLM-Omni's ``POST /v1/chat/completions``, which notes the same as ours does of our server.

vLLM-Omni tells text and sound apart by the event's ``modality``, and puts base64 of 16-bit sound where text goes. It is
asked for answers of a forced length: its random weights find no end, and ours neither.
"""

from __future__ import annotations

from typing import Any

from voicechat.bench.chat_client import ChatClient, ClientError


class OmniClient(ChatClient):
    """Asks vLLM-Omni."""

    async def look(self) -> str:
        """Learn what the server serves; the model's name."""
        listing = await self.get_json("/v1/models")
        try:
            self.model = self.model or str(listing["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ClientError(f"{self.base}/v1/models does not list a model") from None
        self.voice = ""  # the model's own
        return self.model

    def _own_fields(self, latency_first: bool, max_tokens: int | None) -> dict[str, Any]:
        forced = {} if max_tokens is None else {"min_tokens": max_tokens, "ignore_eos": True}
        return {"audio": {"format": "pcm16"}, **forced}

    def _parts(self, chunk: dict[str, Any], delta: dict[str, Any]) -> tuple[str | None, str | None]:
        content = delta.get("content")
        return (None, content) if chunk.get("modality") == "audio" else (content, None)

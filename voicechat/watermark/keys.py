"""The secret that a mark is made with, and found with."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

KEY_BYTES = 32


class InvalidKey(ValueError):
    """Text that is no key; ``str()`` says why, and never shows it."""


@dataclass(frozen=True, slots=True)
class Key:
    """A secret of 32 bytes. Printing it shows :attr:`id` alone."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise InvalidKey(f"a watermark key has {KEY_BYTES} bytes, not {len(self.secret)}")

    def __str__(self) -> str:
        return f"watermark key {self.id}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """A key from its 64 hexadecimal digits. Raises :class:`InvalidKey`."""
        text = text.strip()
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            raise InvalidKey(
                f"a watermark key is {2 * KEY_BYTES} hexadecimal digits; there is something else"
            ) from None
        if len(secret) != KEY_BYTES:
            raise InvalidKey(f"a watermark key is {2 * KEY_BYTES} hexadecimal digits, not {len(text)} characters")
        return cls(secret)

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that name the key to anyone, and tell nothing of it."""
        return self.derive("id", 4).hex()

    def derive(self, purpose: str, count: int) -> bytes:
        """``count`` bytes for one purpose: HMAC-SHA-256 over a counter (as in NIST SP 800-108, counter mode)."""
        blocks = [
            hmac.digest(
                self.secret, counter.to_bytes(4, "big") + b"voicechat watermark " + purpose.encode(), hashlib.sha256
            )
            for counter in range(-(-count // 32))
        ]
        return b"".join(blocks)[:count]

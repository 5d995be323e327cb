"""Settings of the watermark: the section ``watermark`` of the tree. docs/watermark.md tells what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from voicechat.config_section import Section, StrList
from voicechat.watermark.keys import Key
from voicechat.watermark.store import payload_of


class SignatureSettings(Section):
    """Signed metadata (C2PA) in whole files of the formats that can hold it: wav, mp3 and flac."""

    certificate: Path | None = Field(
        default=None, description="PEM file with the signing certificate and those above it; unset: nothing is signed"
    )
    private_key: Path | None = Field(default=None, description="PEM file (PKCS #8) with the certificate's private key")
    algorithm: Literal["es256", "es384", "es512", "ps256", "ps384", "ps512", "ed25519"] = Field(
        default="es256", description="of the certificate's key"
    )
    trust_anchors: Path | None = Field(
        default=None, description="PEM file with the authorities that checks trust; unset: none, all else is only valid"
    )
    speech: bool = Field(
        default=False, description="also sign files of /v1/audio/speech, which are then sent once they are whole"
    )

    @model_validator(mode="after")
    def _both(self) -> SignatureSettings:
        if (self.certificate is None) != (self.private_key is None):
            given, lacks = (
                ("certificate", "private_key") if self.private_key is None else ("private_key", "certificate")
            )
            raise ValueError(f"watermark.signature.{given} is set, but watermark.signature.{lacks} is not")
        return self


class WatermarkSettings(Section):
    """The inaudible mark in all sound that the server makes, and how it is looked for. Keys are secrets."""

    enabled: bool = True
    key: str | None = Field(default=None, repr=False, description="64 hex digits; unset: that of key_file")
    key_file: Path | None = Field(
        default=None, description="file with the key, made if it is not there; unset: watermark.key in data_dir"
    )
    payload: int | str = Field(
        default="voicechat", description="names this deployment: 0 to 65535, or a text, of which 16 bits are hashed"
    )
    known_keys: StrList = Field(default=(), repr=False, description="further keys by which checks look for marks")
    timeout_s: float = Field(
        default=5.0, gt=0, description="by how much marking may fall behind a reply's sound, before the reply fails"
    )
    max_check_mb: int = Field(default=200, ge=1, description="largest file of /v1/content_provenance_checks")
    max_check_minutes: float = Field(
        default=180, gt=0, description="longest sound in such a file; small ones hold days"
    )
    max_upload_s: float = Field(default=120, gt=0, description="in which such a file must have come")
    max_checks: int = Field(default=4, ge=1, description="files checked, or waiting to be, at once; one is at a time")
    signature: SignatureSettings = SignatureSettings()

    @field_validator("key")
    @classmethod
    def _is_key(cls, value: str | None) -> str | None:
        return value if value is None else Key.parse(value).secret.hex()

    @field_validator("known_keys")
    @classmethod
    def _are_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(Key.parse(key).secret.hex() for key in value)

    @field_validator("payload", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        """The environment and flags give text: digits are a number."""
        return int(value) if isinstance(value, str) and value.strip().isdecimal() else value

    @field_validator("payload")
    @classmethod
    def _fits(cls, value: int | str) -> int | str:
        payload_of(value)
        return value

"""The base of all sections of the settings, and of the one that each family has for itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section of the settings: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), validate_default=True)


class ModelSettings(Section):
    """What is served under which name. Each family adds fields of its own; see :mod:`voicechat.contract.family`."""

    name: str = Field(default="embedded", min_length=1)
    family: str = Field(
        default="embedded", min_length=1, description="a folder of models/, or a name that an installed package offers"
    )

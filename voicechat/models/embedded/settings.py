"""The embedded family's section ``model`` of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voicechat.contract.model_settings import ModelSettings, Section


class ThinkerModelSettings(Section):
    """Which LLM thinks, and in which form it is run."""

    source: str = Field(default="qwen2.5-coder-0.5b", description="name in the assembler's catalogue")
    dir: Path | None = Field(
        default=None, description="a Hugging Face folder to run as it is, instead of assembling `source`"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    quantization: Literal["none", "int8"] = Field(default="none", description="int8: W8A8, made once when assembling")
    system_prompt: str | None = Field(
        default=None, description="system turn when the caller sends none; unset: the family's"
    )


class TalkerModelSettings(Section):
    """In which form the Talker is run."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quantization: Literal["none", "int8"] = Field(default="none", description="int8: W8A8, made once when assembling")
    projection: Path | None = Field(
        default=None,
        description="what `voicechat train thinker` made for this Thinker; unset: the weights' own, if any",
    )


class ReadingSettings(Section):
    """How text is read aloud where it is not words; ``docs/reading.md`` has the rules."""

    code: Literal["announce", "skip"] = Field(default="announce", description="blocks of code")
    tables: Literal["announce", "skip"] = Field(default="announce", description="tables")
    emoji: Literal["silent", "name"] = "silent"
    pronunciations: Path | None = Field(
        default=None, description="YAML file of words and how they are read: other words, or /IPA/"
    )


class EmbeddedSettings(ModelSettings):
    """What is served under which name."""

    thinker: ThinkerModelSettings = ThinkerModelSettings()
    talker: TalkerModelSettings = TalkerModelSettings()
    reading: ReadingSettings = ReadingSettings()
    weights: Path | None = Field(default=None, description="Talker and VoiceBox; unset: those in the package")

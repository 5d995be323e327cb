"""Settings of turn-taking: the section ``turns`` of the tree. docs/turns.md tells what follows from what."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from voicechat.config_section import IntList, Section


class SegmenterSection(Section):
    """How frames of sound become the user's turns. Milliseconds."""

    silence_ms: int = Field(default=500, ge=20, description="silence that ends a turn, where the client does not say")
    pause_ms: int = Field(default=160, ge=20, description="silence after which a turn may be over")
    prefix_ms: int = Field(default=300, ge=0, description="sound before the voice that belongs to a turn")
    onset_ms: int = Field(default=60, ge=20, description="voice that opens a turn")
    onset_window_ms: int = Field(default=120, ge=20, description="... within so long")
    strict_onset_ms: int = Field(default=240, ge=20, description="voice that opens a turn in a reply, by level alone")
    strict_window_ms: int = Field(default=400, ge=20, description="... within so long")
    suspect_ms: int = Field(default=800, ge=20, description="a voice in a reply is suspected for so long at most")
    dismiss_ms: int = Field(default=400, ge=20, description="silence that dismisses the suspicion")
    resume_ms: int = Field(default=40, ge=20, description="voice that ends a pause")
    min_speech_ms: int = Field(default=120, ge=0, description="a turn with less voice is none")
    max_turn_ms: int = Field(default=60_000, ge=20, description="a longer turn is cut")


class BargeInSection(Section):
    """What it takes to interrupt a reply. Milliseconds."""

    server_onset_ms: int = Field(default=160, ge=20, description="voice that opens a turn in a reply the server plays")
    server_window_ms: int = Field(default=320, ge=20, description="... within so long")
    client_onset_ms: int = Field(default=100, ge=20, description="voice that opens a turn in a reply the client plays")
    client_window_ms: int = Field(default=160, ge=20, description="... within so long")
    judge_ms: int = Field(default=400, ge=20, description="voice in a reply that is heard for what it means")
    judge_again_ms: int = Field(default=300, ge=20, description="voice after which it is heard again")
    certain_ms: int = Field(default=1200, ge=20, description="voice that is a barge-in; twice as much of backchannels")
    short_ms: int = Field(default=900, ge=0, description="less voice is often misheard, and then no barge-in")
    short_words: int = Field(default=2, ge=1, description="... unless it has so many words that no listener says")
    partial_words: int = Field(default=3, ge=1, description="so many make a barge-in while the user still speaks")
    afterthought_ms: int = Field(default=480, ge=20, description="silence after a backchannel: no 'but' follows")
    undecided_ms: int = Field(default=500, ge=20, description="silence for which a held reply waits for the ASR")


class PartialSection(Section):
    """When the open turn is heard ahead of its end. Milliseconds."""

    silence_ms: int = Field(default=60, ge=20, description="silence at which it is")
    every_ms: int = Field(default=500, ge=0, description="so often at most")
    speech_ms: int = Field(default=3000, ge=20, description="voice after which it is without such a silence")


class PatienceSection(Section):
    """How long to wait in a pause with `semantic_vad`, for one eagerness."""

    judge_ms: int = Field(ge=20, description="silence after which the sound is first judged")
    least_ms: int = Field(ge=20, description="silence before which no turn ends")
    risk: float = Field(gt=0, lt=1, description="a turn ends when its speaker goes on with no more than this chance")
    complete_ms: int = Field(ge=20, description="silence that ends a turn whose words make a whole")
    awaiting_ms: int = Field(ge=20, description="silence up to which it waits for the words, and for the response")
    unknown_ms: int = Field(ge=20, description="silence that ends a turn of which nothing is known")
    limit_ms: int = Field(ge=20, description="silence that ends a turn whatever is known")


_LOW = PatienceSection(
    judge_ms=300, least_ms=700, risk=0.02, complete_ms=1600, awaiting_ms=1700, unknown_ms=2500, limit_ms=8000
)
_MEDIUM = PatienceSection(
    judge_ms=100, least_ms=320, risk=0.15, complete_ms=620, awaiting_ms=680, unknown_ms=1300, limit_ms=4000
)
_HIGH = PatienceSection(
    judge_ms=100, least_ms=240, risk=0.3, complete_ms=440, awaiting_ms=500, unknown_ms=700, limit_ms=2000
)


class EndpointingSection(Section):
    """When a pause is the end of the turn, with `semantic_vad`."""

    low: PatienceSection = _LOW
    medium: PatienceSection = _MEDIUM
    auto: PatienceSection = _MEDIUM
    high: PatienceSection = _HIGH
    again_ms: IntList = Field(default=(1000, 2000, 4000), description="silences at which the sound is judged again")
    retake_ms: int = Field(
        default=900,
        ge=0,
        description="an end is taken back if the user goes on so soon after the last voice; 0: never",
    )
    retake_heard_ms: int = Field(default=400, ge=0, description="... and no more of the reply has been heard")
    made_up_ms: int = Field(default=240, ge=0, description="silence that a judgement is given, also before it is there")

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, values: Any) -> Any:
        """What is not said of an eagerness is as by default."""
        if not isinstance(values, dict):
            return values
        defaults = {"low": _LOW, "medium": _MEDIUM, "auto": _MEDIUM, "high": _HIGH}
        return {
            name: defaults[name].model_dump() | value if name in defaults and isinstance(value, dict) else value
            for name, value in values.items()
        }


class VadSection(Section):
    """When a frame of 20 ms is voiced: by its level, and by how likely it is speech."""

    min_level_db: float = Field(default=-55.0, le=0, description="RMS under which nothing is speech, of full scale")
    above_room_db: float = Field(default=8.0, ge=0, description="how much louder than the room speech is")
    below_speaker_db: float = Field(
        default=32.0, ge=0, description="so far below the speaker's recent level a word has died away"
    )
    release: float = Field(
        default=0.15, ge=0, le=1, description="speech goes on until its probability is so far below the threshold"
    )
    strict_threshold: float = Field(
        default=0.7, ge=0, le=1, description="least threshold in a reply, of which the microphone may hear an echo"
    )
    below_user_db: float = Field(
        default=14.0, ge=0, description="in a reply, a voice so far below the user's is somebody else's, or an echo"
    )


class TurnsSettings(Section):
    """How realtime sessions take turns; docs/turns.md tells what follows from what."""

    language: str = Field(default="en", min_length=2, description="the users', where a session does not say")
    vad: VadSection = VadSection()
    segmenter: SegmenterSection = SegmenterSection()
    barge_in: BargeInSection = BargeInSection()
    partials: PartialSection = PartialSection()
    endpointing: EndpointingSection = EndpointingSection()

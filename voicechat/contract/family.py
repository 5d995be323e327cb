"""What a family of models is: all that server, cascade and stages know of one.

A family is a folder ``voicechat/models/NAME/`` whose ``family.py`` holds ``FAMILY``, an object that is a
:class:`Family`; or an installed package with such an object under the entry point group :data:`ENTRY_POINTS`.
``model.family`` of the settings names it. ``docs/families.md`` walks through one.

Each part is asked for in the process that needs it, and nowhere else:

==============================  ======================================================================================
the server                      :class:`Family` itself: settings, folders, :class:`Facts`. No torch, no vLLM there
the Thinker's process           :meth:`Family.thinker`: :class:`ThinkerModel`, its :class:`Prompter`
  its engine's worker           the same object's :meth:`ThinkerModel.rows`
the Talker's process            :meth:`Family.talker`: :class:`TalkerModel`, an :class:`Utterance` for each reply
  its engine's scheduler        the same object's :class:`Pace` for each request
  its engine's worker           the same object's :class:`Conditioning`
the VoiceBox's process          :meth:`Family.voicebox`: :class:`Decoder`
==============================  ======================================================================================

A *step* is one step of the Talker, and what the VoiceBox is given of it: :attr:`Facts.step_bytes` opaque bytes, which
sound :attr:`Facts.step_samples` samples. A *text row* is what the Talker's host puts into the pool for the Talker to
read: :attr:`Facts.text_columns` integers. A *hidden row* is what the Thinker's worker leaves in the pool for a position
of its text: :attr:`RowLayout.width` bfloat16 numbers. Tensors are torch's; they are ``Any`` here, for torch is not
imported in this room. Where a method takes or gives tensors its text says shape and type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from voicechat.contract.artifacts import Artifact
from voicechat.contract.messages import Decode, Generate
from voicechat.contract.model_settings import ModelSettings
from voicechat.contract.pool import Pool
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.contract.sound import EarsPcm, Pcm

ENTRY_POINTS = "voicechat.families"
"""Group of the entry points under which other packages offer families."""

Tensor = Any
"""``torch.Tensor``."""


class FamilyError(ValueError):
    """These settings or folders make no model of the family. ``str()`` says why and what to do."""


# ---- in the server


@dataclass(frozen=True, slots=True)
class GivenFolder:
    """A folder that is there already: the user's, or part of a package. The family has looked into it."""

    path: Path


@dataclass(frozen=True, slots=True)
class MadeFolder:
    """A folder that the assembler makes once, whole or not at all, under the data folder.

    ``path`` is relative to the data folder (``talkers/1a2b3c``); ``recipe`` (JSON) says what it is made of: with
    another recipe it is made again; ``need_bytes`` of free disk are asked for first. ``make(folder, workshop)`` fills
    the empty folder; it runs once, in the assembling process, and may import what it likes.
    """

    path: str
    recipe: Mapping[str, Any]
    need_bytes: int
    make: Callable[[Path, Workshop], None]


@dataclass(frozen=True, slots=True)
class LlmFolder:
    """A Hugging Face folder of an LLM out of the assembler's catalogue (``voicechat.assemble.catalogue.THINKERS``)."""

    source: str
    quantization: Literal["none", "int8"] = "none"


Folder = GivenFolder | MadeFolder | LlmFolder


class Workshop(Protocol):
    """What the assembler lends to :attr:`MadeFolder.make`."""

    def fetch(self, artifact: Artifact) -> Path:
        """Where a source file lies, fetched if it must be and verified by its checksum."""

    def say(self, text: str) -> None:
        """Tell the user what is being done."""

    def quantize(self, folder: Path) -> None:
        """Make the linear layers of a Hugging Face folder int8 (W8A8), in place."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What a hidden row is, and of which positions there is one.

    ``width``: bfloat16 numbers of a row: as wide as :meth:`ThinkerModel.rows` makes them. Row 0 of a reply is that of

    - ``predicting``: the position that predicts its first token (the prompt's last). When token ``i`` is announced,
      rows ``0 .. i`` are written;
    - ``consuming``: the position that consumes its first token. With token ``i`` rows ``0 .. i - 1`` are written, and
      that of the last token never is;
    - ``prompt``: the prompt's first position. With token ``i`` rows ``0 .. prompt + i - 1`` are written. The Thinker
      then runs without a prefix cache.
    """

    width: int
    begin: Literal["predicting", "consuming", "prompt"] = "predicting"

    def first(self, prompt: int) -> int:
        """The position of row 0 behind a prompt of so many tokens."""
        return {"predicting": prompt - 1, "consuming": prompt, "prompt": 0}[self.begin]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a model of the family is, once its folders are there."""

    voices: tuple[str, ...]
    """Names of its voices; the first is the default. A voice's number is its place here."""
    about: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of some voices what is known: ``name``, ``description``, ``gender``, ``language``, each or none."""
    sees: bool = False
    """Whether images go into the Thinker's prompt."""
    hears: bool = False
    """Whether sounds go into the Thinker's prompt. If not, they are transcribed first."""
    most_images: int | None = None
    """Images of one request at most; None: as many as the context holds."""
    most_sounds: int | None = None
    """Sounds of one request at most; None: as many as the context holds."""
    context_tokens: int | None = None
    """Positions for which the Thinker was made, if known."""
    system_prompt: str
    """System turn of conversations that have none."""
    rows: RowLayout | None = None
    """The hidden rows; None: the Talker reads text alone."""
    step_samples: int
    """Samples (24 kHz) that one step sounds."""
    step_bytes: int
    """Bytes of one step on its way from Talker to VoiceBox."""
    look_ahead: int = 0
    """Steps of the future that the VoiceBox needs to decode a step; there are fewer at a reply's end."""
    text_columns: int = 2
    """Integers of a text row."""
    extra_bytes: int = 0
    """Bytes that the Talker's worker adds to each sampled token (further codebooks); 0: the token says all."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Advised sampling of the Talker: fields of vLLM's ``SamplingParams``. The settings' own go before it."""
    thinker: Mapping[str, Any] = field(default_factory=dict)
    """Given to :meth:`Family.thinker` in the Thinker's processes: plain values (JSON). So the next two."""
    talker: Mapping[str, Any] = field(default_factory=dict)
    voicebox: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpec:
    """A model for :meth:`Family.plain`: ``thinker`` and ``talker`` of its facts, without quantisation, and settings.

    ``ears_dir``: faster-whisper's folder; None: it is deaf. ``sampling`` is the Talker's.
    """

    thinker: Mapping[str, Any]
    talker: Mapping[str, Any]
    ears_dir: str | None
    system_prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    repetition_penalty: float
    sampling: Mapping[str, Any]
    ears_beam_size: int
    threads: int
    device: str = "cpu"


@dataclass(slots=True)
class PlainAnswer:
    """An answer and how it came about, in seconds: ``times`` of the stages, one after another, and their sum."""

    text: str = ""
    heard: str | None = None
    tokens: int = 0
    steps: int = 0
    audio_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    total_s: float = 0.0


class Plain(Protocol):
    """The model without a server: one stage after another, in one process. What a benchmark compares with."""

    @property
    def facts(self) -> Mapping[str, str | float]:
        """How it is run: threads, types."""

    def answer(self, text: str | None, sound: EarsPcm | None, max_tokens: int | None) -> PlainAnswer:
        """Answer a typed question, or a spoken one."""


class Family(Protocol):
    """One family. Importing its module must not import torch or vLLM: the server does it."""

    @property
    def settings(self) -> type[ModelSettings]:
        """The section ``model`` of the settings: a subclass with the family's own fields."""

    def folders(self, model: Any, *, thinks: bool) -> Mapping[str, Folder]:
        """Folders that its stages load, by names of its own. ``model`` is an instance of :attr:`settings`.

        ``thinks`` is False where a brain elsewhere writes the replies: no folder of a Thinker is needed. Raises
        :class:`FamilyError`.
        """

    def facts(self, model: Any, folders: Mapping[str, Path], *, thinks: bool) -> Facts:
        """What the model is; all of :meth:`folders` are there. Without ``thinks`` there are no :attr:`Facts.rows`.

        Raises :class:`FamilyError` where they do not fit each other.
        """

    def thinker(self, given: Mapping[str, Any]) -> ThinkerModel:
        """In the Thinker's processes; ``given`` is :attr:`Facts.thinker`."""

    def talker(self, given: Mapping[str, Any]) -> TalkerModel:
        """In the Talker's processes; ``given`` is :attr:`Facts.talker`."""

    def voicebox(self, given: Mapping[str, Any], place: DecoderPlace) -> Decoder:
        """In the VoiceBox's process, warm; ``given`` is :attr:`Facts.voicebox`."""

    def plain(self, spec: PlainSpec) -> Plain:
        """In a benchmark's process. Raises :class:`FamilyError` if the family has no such form."""


# ---- engines


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """What vLLM runs.

    ``architectures`` maps names that ``config.json`` gives under ``architectures`` to our classes, ``module:Class``;
    they are made known to vLLM in every process of the engine. ``options`` are further arguments of ``AsyncEngineArgs``
    (``hf_overrides``, ``limit_mm_per_prompt``, …); they go before what the stage would set.
    """

    folder: str
    dtype: str = "bfloat16"
    architectures: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


# ---- the Thinker


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the Thinker reads.

    ``ids``: token ids. ``media``: sounds and images in vLLM's names and forms (``{"audio": [...], "image": [...]}``),
    for which ``ids`` holds the model's placeholders, as its Hugging Face processor expects them. ``note``: what the
    Talker's :class:`Utterance` has to know of the prompt; it travels with the first text.
    """

    ids: list[int]
    media: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    note: bytes = b""


class Prompter(Protocol):
    """Builds prompts; runs on the event loop of the Thinker's process."""

    def prompt(self, message: Generate, media: Mapping[int, AudioPart | ImagePart]) -> Prompt:
        """The prompt of a request, up to where the reply begins.

        ``message.turns`` are the conversation; their ``media`` name sounds and images of ``media`` by number, and say
        where in the text they stand. Tools may be told by :func:`voicechat.contract.tools.as_text`. Raises ValueError,
        in words for the caller, for a conversation that the model can't read.
        """


class ThinkerModel(Protocol):
    """The LLM that understands and writes."""

    @property
    def engine(self) -> EngineModel:
        """What vLLM runs."""

    def prompter(self, tokenizer: Any, system_prompt: str) -> Prompter:
        """Made once; ``tokenizer`` is the engine's."""

    def rows(self, model: Any, hidden: Tensor) -> Tensor:
        """Inside the worker, after each forward pass: hidden rows ``[tokens, width]`` of all tokens of the step.

        ``model`` is the ``nn.Module`` that ran, ``hidden`` ``[tokens, H]`` its last hidden states. What else a row
        needs (an embedding, a middle layer) the model keeps in a buffer of its own, so that CUDA graphs write it too.
        Give ``hidden`` itself back where that is the row: nothing is copied then.
        """


# ---- the Talker, in its host


@dataclass(frozen=True, slots=True)
class TextRows:
    """Text rows that follow those given before; ``final`` closes the text."""

    rows: Sequence[Sequence[int]]
    final: bool


@dataclass(frozen=True, slots=True)
class TalkerRequest:
    """A request to the Talker's engine.

    ``ids``: its prompt (placeholders, whose embeddings the :class:`Conditioning` edits). ``facts``: plain values for
    :meth:`TalkerModel.pace` and :meth:`Conditioning.begin`. ``max_tokens``: bound, None: as long as the engine can.
    """

    ids: list[int]
    facts: Mapping[str, int] = field(default_factory=dict)
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What sampled tokens are: ``steps``, :attr:`Facts.step_bytes` bytes each, and whether the request is to be ended.

    ``window``: the reply goes on in another request; ``length``: far more was said than the text has; ``end``: the
    reply is over, without a token that says so.
    """

    steps: bytes
    end: Literal["", "window", "length", "end"] = ""


class Utterance(Protocol):
    """One reply in the Talker's host: text in, text rows and steps out. Pure; no method waits.

    The host calls :meth:`push` as text comes, then :meth:`read` (and again after each :meth:`take`: text may be held
    back, and read little by little). Once :attr:`ready` it runs :meth:`request`; tokens go through :meth:`take`; at the
    request's end :meth:`finish` says whether another one follows.
    """

    def push(self, pieces: Sequence[str], *, final: bool, note: bytes) -> None:
        """Text has come, one piece for each of the Thinker's tokens if there are hidden rows; ``final`` closes it."""

    def read(self) -> TextRows | None:
        """Text rows that are due now; None if there are none and the text is not over."""

    @property
    def ready(self) -> bool:
        """Enough text rows were read for a request to begin."""

    @property
    def silent(self) -> bool:
        """All text was read, and nothing in it can be spoken: no request is made."""

    def request(self) -> TalkerRequest:
        """The next request."""

    def take(self, tokens: Sequence[int], extra: bytes) -> Said:
        """Sampled tokens, and :attr:`Facts.extra_bytes` bytes for each of them. Those that end a reply are no step."""

    def finish(self) -> Literal["end", "window"]:
        """The engine has ended the request by itself: is the reply over?"""

    def drop(self) -> int:
        """Between two requests: how many of the oldest text rows are not needed any more. They are then counted
        away."""


class Pace(Protocol):
    """One request in the engine's scheduler: how many text rows a step needs. Called before every step; be quick."""

    def rows(self, tokens: Sequence[int], on_the_way: int) -> int:
        """Text rows that have to lie in the slot before the next step, unless the text is over.

        ``tokens`` are the request's so far, prompt included (it only grows); ``on_the_way`` further steps run already,
        whose tokens are not known.
        """


class TalkerModel(Protocol):
    """The model that makes speech tokens."""

    @property
    def engine(self) -> EngineModel:
        """What vLLM runs."""

    @property
    def stop_ids(self) -> Sequence[int]:
        """Tokens that end a request."""

    def load(self) -> None:
        """In the host: read what utterances need (a lexicon); may take a second."""

    def utterance(self, voice: int, *, max_rows: int, max_text_rows: int) -> Utterance:
        """In the host: a reply in one of the voices, by its number.

        ``max_rows``: most hidden rows of it, 0: there are none; ``max_text_rows``: room for its text rows.
        """

    def pace(self, facts: Mapping[str, int]) -> Pace:
        """In the scheduler: of a new request."""

    def conditioning(self, inside: TalkerInside) -> Conditioning:
        """In the worker, once, when the model is loaded."""


# ---- the Talker, in its engine's worker


class HiddenRows(Protocol):
    """The Thinker's rows as the Talker's device reads them."""

    def begin(self, slot: int) -> None:
        """A new request begins on the slot."""

    def bring(self, slot: int, end: int) -> None:
        """Rows before ``end`` of a slot are about to be read: copies them to this device, where they lie elsewhere."""

    def gather(self, slots: Tensor, rows: Tensor, generations: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[n, width]`` (float32) by slot, row and the lease's generation, int64 ``[n]`` each.

        Bool ``wanted`` ``[n]`` masks those that count. The second result (bool ``[n]``) says which of them are whole
        and the lease's own; all others are 0. It can be captured in a CUDA graph: what is out of range is clamped.
        """


@dataclass(frozen=True, slots=True)
class TalkerInside:
    """What a :class:`Conditioning` may use.

    ``model``: the loaded ``nn.Module``; ``device``: torch's. With ``on_host`` the model runs on the CPU, and hidden
    rows are read by :meth:`~voicechat.contract.pool.Pool.read_hidden`; else by what ``open_rows()`` gives, which is
    called at most once, and not where no hidden rows are used.
    """

    pool: Pool
    model: Any
    device: Any
    on_host: bool
    open_rows: Callable[[], HiddenRows]


@dataclass(slots=True)
class Entry:
    """One request of a batch: ``count`` tokens from position ``start`` on, of a slot (None: it has none, leave it)."""

    slot: int | None
    start: int
    count: int


Embed = Callable[[Tensor], Tensor]


class Conditioning(Protocol):
    """Edits the input embeddings of every step; all requests of a step at once."""

    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        """A request begins on a slot; ``facts`` are those of :class:`TalkerRequest`."""

    def step(self, entries: Sequence[Entry], ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """Before the forward pass: edit ``embeddings`` in place.

        ``ids`` int ``[>= n]`` and ``embeddings`` ``[>= n, width]`` are the engine's own buffers, ``n`` the tokens of
        ``entries`` in the batch's order. With ``embed`` the embeddings are not there yet: ``embed(ids)`` makes them. A
        request whose ``start`` is 0 again was preempted and begins anew.
        """

    def sampled(self, entries: Sequence[Entry], tokens: Tensor, hidden: Tensor) -> Tensor | None:
        """After the step: ``tokens`` int ``[len(entries)]`` were drawn from the last positions' ``hidden``
        ``[len, H]``.

        Gives uint8 ``[len(entries), extra_bytes]``: what :meth:`Utterance.take` gets as ``extra`` (further codebooks).
        Not called where :attr:`Facts.extra_bytes` is 0.
        """

    def capture(self, most: int, ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """Capture CUDA graphs for steps of up to ``most`` single tokens over the engine's buffers. Only on CUDA."""


# ---- the VoiceBox


@dataclass(frozen=True, slots=True)
class DecoderPlace:
    """Where and how the VoiceBox decodes.

    ``device``: torch's; ``graphs``: capture CUDA graphs. ``lengths``: the chunk lengths, in steps with context, that
    replies are made of, ``max_batch``: most chunks at once; all of these are to be warm before the first reply.
    ``slots``: chunks name slots below it.
    """

    device: Any
    graphs: bool
    threads: int
    max_batch: int
    lengths: Sequence[int]
    slots: int = 1


class Decoded(NamedTuple):
    """One chunk's sound: exactly ``emit * step_samples`` samples, and the state for the reply's next chunk."""

    pcm: Pcm
    state: bytes


class Decoder(Protocol):
    """Turns chunks of steps into sound; called from one thread.

    A chunk (:class:`~voicechat.contract.messages.Decode`) holds ``steps``, with ``left`` of the past and up to
    ``look_ahead`` of the future around the ``emit`` that are new. ``state`` is what :meth:`decode` gave for the reply's
    chunk before, empty for its first: a phase, a seed, a place; it travels over the control plane, so keep it small.
    What is large is kept in the decoder by ``slot``: a chunk without a state begins a new reply there.
    """

    def shape(self, chunk: Decode) -> Hashable:
        """Chunks of equal shape are decoded together."""

    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        """Chunks of one shape to sound. Raises ValueError for steps that are none."""

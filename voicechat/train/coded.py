"""All speech of a training as the VoiceBox's phases see it: windows for a step, its codes, and what is held out."""

from __future__ import annotations

import logging

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voicechat.models.embedded.voicebox import CODES, FRAMES_PER_TOKEN, TOKEN_SAMPLES, VoiceBoxNet
from voicechat.train.arena import Arena, Clip, Held
from voicechat.train.codec import LABELS, Encoder, MelLoss
from voicechat.train.common import Work, write_arrays
from voicechat.train.gan import empty_window
from voicechat.train.spectrum import add_to_spectrum, spectrum_difference

logger = logging.getLogger("voicechat.train")

CODES_FILE = "codes.npz"


class CodedSpeech:
    """The arena, the ``window`` that a step reads, and the ``codes`` of the arena's tokens, once they are known."""

    def __init__(self, work: Work, arena: Arena, batch: int, tokens: int, device: torch.device) -> None:
        """``window``: ``batch`` sequences of ``tokens`` tokens."""
        self.work, self.arena, self.device = work, arena, device
        self.window = empty_window(batch, tokens, device)
        self.codes = torch.zeros(0, dtype=torch.int16)
        self._mel = MelLoss().to(device)

    def draw(self, count: int) -> None:
        """New speech into the first ``count`` sequences of the window, with its codes if they are known yet."""
        arena, window = self.arena, self.window[:count]
        tokens = window.codes.shape[1]
        starts = arena.draw(count, tokens)
        window.sound.copy_(arena.windows(starts * TOKEN_SAMPLES, window.sound.shape[1]))
        index = starts[:, None] + torch.arange(tokens, device=self.device)
        window.voices.copy_(arena.voices[index])
        window.symbols.copy_(arena.symbols[index])
        if len(self.codes):
            window.codes.copy_(self.codes[index])
        index = starts[:, None] * LABELS + torch.arange(tokens * LABELS, device=self.device)
        window.labels.copy_(arena.labels[index].unflatten(1, (tokens, LABELS)))
        track = arena.tracks(starts * FRAMES_PER_TOKEN, window.pitch.shape[1])
        for kept, new in zip((window.pitch, window.middles, window.voiced), track, strict=True):
            kept.copy_(new)

    @torch.inference_mode()
    def encode(self, encoder: Encoder) -> None:
        """Codes of all clips, for the arena and as a file."""
        encoder.eval()
        silence = codes_of(encoder, torch.zeros(1, 32 * TOKEN_SAMPLES, device=self.device))[0, 16]
        self.codes = silence.repeat(self.arena.tokens + self.window.codes.shape[1]).to(torch.int16)
        made: list[tuple[Clip, Tensor]] = []
        clips = sorted(self.arena.clips, key=lambda clip: clip.tokens)
        for start in range(0, len(clips), 128):
            part = clips[start : start + 128]
            length = max(clip.tokens for clip in part) * TOKEN_SAMPLES
            firsts = torch.tensor([clip.token * TOKEN_SAMPLES for clip in part], device=self.device)
            ends = torch.tensor([clip.tokens * TOKEN_SAMPLES for clip in part], device=self.device)
            inside = torch.arange(length, device=self.device) < ends[:, None]
            index = (firsts[:, None] + torch.arange(length, device=self.device)).clamp(max=len(self.arena.sound) - 1)
            codes = codes_of(encoder, self.arena.sound[index].float() / 32768 * inside).to(torch.int16)
            for row, clip in enumerate(part):
                own = codes[row, : clip.tokens]
                self.codes[clip.token : clip.token + clip.tokens] = own
                made.append((clip, own.cpu()))
        for held in self.arena.held:
            made.append((held.clip, codes_of(encoder, self.held_sound(held))[0].to(torch.int16).cpu()))
        every = torch.cat([codes for _, codes in made]).long()
        share = torch.bincount(every, minlength=CODES).float() / len(every)
        perplexity = torch.exp(-(share * torch.log(share + 1e-9)).sum()).item()
        logger.info("voicebox: %d codes, perplexity %.0f, %d in use", len(every), perplexity, int((share > 0).sum()))
        write_arrays(
            self.work.file(CODES_FILE),
            voice=np.asarray([clip.voice for clip, _ in made], np.int64),
            text_set=np.asarray([clip.text_set for clip, _ in made]),
            index=np.asarray([clip.index for clip, _ in made], np.int64),
            counts=np.asarray([len(codes) for _, codes in made], np.int64),
            codes=np.concatenate([codes.numpy() for _, codes in made]),
        )

    @torch.inference_mode()
    def held_loss(self, encoder: Encoder, decoder: VoiceBoxNet) -> float:
        """Mean mel distance of some held-out clips."""
        decoder.eval()
        losses = [
            self._mel(self.again(encoder, decoder, held), self.held_sound(held)).mean().item() for held in self.held(45)
        ]
        decoder.train()
        return float(np.mean(losses)) if losses else float("nan")

    @torch.inference_mode()
    def match_spectrum(self, decoder: VoiceBoxNet, count: int) -> None:
        """Correct the decoder's mean spectrum by ``count`` training clips of each voice."""
        pairs = []
        decoder.eval()
        for voice in range(len(self.work.voices())):
            for clip in [clip for clip in self.arena.clips if clip.voice == voice][:count]:
                first = clip.token * TOKEN_SAMPLES
                sound = self.arena.sound[None, first : first + clip.tokens * TOKEN_SAMPLES].float() / 32768
                codes = self.codes[None, clip.token : clip.token + clip.tokens].long()
                symbols = self.arena.symbols[None, clip.token : clip.token + clip.tokens].long()
                made = decoder.decode(codes, symbols, torch.tensor([voice], device=self.device))
                pairs.append((sound[0], made[0]))
        difference = spectrum_difference(pairs)
        add_to_spectrum(decoder, difference)
        decoder.train()
        least, most = (8.686 * end.item() for end in difference.aminmax())
        logger.info("voicebox: spectrum corrected by %.1f to %.1f dB", least, most)

    def held(self, count: int) -> list[Held]:
        """Some held-out clips, the voices in turn."""
        return sorted(self.arena.held, key=lambda one: (one.clip.index, one.clip.text_set, one.clip.voice))[:count]

    def held_sound(self, held: Held) -> Tensor:
        """Its sound as float32 [1, whole tokens]."""
        sound = held.sound.float() / 32768
        return F.pad(sound, (0, held.clip.tokens * TOKEN_SAMPLES - len(sound))).to(self.device)[None]

    def again(self, encoder: Encoder, decoder: VoiceBoxNet, held: Held) -> Tensor:
        """A clip through encoder and decoder."""
        voices = torch.tensor([held.clip.voice], device=self.device)
        return decoder.decode(
            codes_of(encoder, self.held_sound(held)), held.symbols.long().to(self.device)[None], voices
        )


def codes_of(encoder: Encoder, sound: Tensor) -> Tensor:
    """Codes [B, T] of sound [B, T * 960]."""
    with torch.autocast(sound.device.type, dtype=torch.bfloat16):
        codes: Tensor = encoder(sound)[1]
    return codes

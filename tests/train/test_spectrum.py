"""The correction of the decoder's mean spectrum."""

from __future__ import annotations

import torch

from voicechat.models.embedded.alphabet import SYMBOLS
from voicechat.models.embedded.voicebox import CODES, VoiceBoxNet
from voicechat.models.embedded.weights import VoiceBoxConfig
from voicechat.train.spectrum import add_to_spectrum, lift_noise, spectrum_difference


def test_a_quieter_sound_is_made_as_loud_again() -> None:
    sound = torch.randn(24_000, generator=torch.Generator().manual_seed(0))
    difference = spectrum_difference([(sound, 0.8 * sound)])
    torch.testing.assert_close(difference, torch.full((481,), 0.2231), atol=1e-3, rtol=0)
    assert spectrum_difference([(sound, 0.1 * sound)]).max() == 0.5, "no more than half a neper"
    assert not spectrum_difference([]).any()


def test_the_correction_goes_into_the_decoder() -> None:
    torch.manual_seed(0)
    decoder = VoiceBoxNet(VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)).eval()
    values, symbols = decoder.quantizer.values(torch.randint(0, CODES, (1, 40))), torch.randint(0, SYMBOLS, (1, 40, 9))
    before = decoder(values, symbols, torch.zeros(1, 40, dtype=torch.long))
    add_to_spectrum(decoder, torch.full((481,), 0.3))
    after = decoder(values, symbols, torch.zeros(1, 40, dtype=torch.long))
    torch.testing.assert_close(after, before * torch.exp(torch.tensor(0.3)), rtol=1e-4, atol=1e-5)
    difference = spectrum_difference([(after[0].detach(), before[0].detach())])
    torch.testing.assert_close(difference, torch.full((481,), 0.3), atol=2e-2, rtol=0)


def test_noise_is_lifted_and_the_tone_stays() -> None:
    torch.manual_seed(0)
    decoder = VoiceBoxNet(VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)).eval()
    values, symbols = decoder.quantizer.values(torch.randint(0, CODES, (1, 8))), torch.randint(0, SYMBOLS, (1, 8, 9))
    voices = torch.zeros(1, 8, dtype=torch.long)
    before = decoder.filters(values, symbols, voices)
    lift_noise(decoder, 6.0)
    after = decoder.filters(values, symbols, voices)
    torch.testing.assert_close(20 * torch.log10(after.noise / before.noise), torch.full_like(after.noise, 6.0))
    assert torch.equal(after.tone, before.tone) and torch.equal(after.pitch, before.pitch)
    lift_noise(decoder, -6.0)
    torch.testing.assert_close(decoder.filters(values, symbols, voices).noise, before.noise)

"""The VoiceBox's sources against other people's integrals, splines and Fourier transforms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.interpolate import CubicHermiteSpline
from torch import Tensor

from voicechat.models.embedded.alphabet import SYMBOL_WINDOW
from voicechat.models.embedded.source import (
    HIGHEST,
    HOP,
    LOWEST,
    NOISE_FRAMES,
    NOISE_HOP,
    NOISE_WINDOW,
    SAMPLE_RATE,
    advance,
    frames_of,
    noise_spectra,
    overlap_add,
    pulses,
    steady_middles,
)
from voicechat.models.embedded.voicebox import VoiceBoxNet
from voicechat.models.embedded.weights import VoiceBoxConfig

Floats = npt.NDArray[np.float64]

TOP = 11_500.0
HALF = HOP // 2

pitches = st.lists(st.floats(LOWEST, HIGHEST, width=32), min_size=1, max_size=40)
sizes = st.sampled_from([(960, HOP), (NOISE_WINDOW, NOISE_HOP)])


def row(values: list[float]) -> Tensor:
    return torch.tensor([values])


def by_sample(pitch: list[float]) -> Floats:
    """Pitch in Hz at samples 0 to F * 240: straight between the frames' middles, level outside them."""
    middles = np.arange(len(pitch)) * HOP + HALF
    return np.interp(np.arange(len(pitch) * HOP + 1), middles, pitch)


def integral(pitch: list[float]) -> Floats:
    """Its phase in cycles there. The bends lie on samples, so that the trapezoidal rule is exact."""
    at = by_sample(pitch) / SAMPLE_RATE
    return np.concatenate(([0.0], np.cumsum((at[1:] + at[:-1]) / 2)))


def cosines(phase: Floats, pitch: Floats) -> Floats:
    """The harmonics under 11.5 kHz one by one, together of unit power."""
    harmonics = np.floor(TOP / pitch.astype(np.float32))
    total = np.zeros_like(phase)
    for number in range(1, int(harmonics.max()) + 1):
        total += np.where(number <= harmonics, np.cos(2 * np.pi * number * phase), 0.0)
    return total * np.sqrt(2 / harmonics)


def assert_pulses(ours: Tensor, phase: Floats, pitch: Floats) -> None:
    """A pulse train [N] is the sum of its harmonics, but for one where float32 cannot tell on which side of the limit
    it lies."""
    count = TOP / pitch
    unsure = np.abs(count - np.round(count)) < 1e-4
    allowed = 0.02 + np.where(unsure, 1.5 * np.sqrt(2 / count), 0.0)
    away = np.abs(ours.double().numpy() - cosines(phase, pitch))
    assert (away < allowed).all(), (np.flatnonzero(away >= allowed)[:10], away.max())


@given(pitches)
@settings(deadline=None)
def test_phases_are_the_integral_of_the_pitch(pitch: list[float]) -> None:
    boundaries, middles = advance(row(pitch)), steady_middles(row(pitch))
    assert boundaries.dtype == middles.dtype == torch.float64
    expected = integral(pitch)
    np.testing.assert_allclose(boundaries[0].numpy(), expected[::HOP], rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(middles[0].numpy(), expected[HALF::HOP], rtol=1e-12, atol=1e-10)


@given(pitches)
@settings(deadline=None)
def test_the_pulse_train_has_the_phases_that_belong_to_the_pitch(pitch: list[float]) -> None:
    """At every sample, so at the boundaries too."""
    made = pulses(row(pitch), steady_middles(row(pitch)))
    assert made.shape == (1, len(pitch) * HOP) and made.dtype == torch.float32
    assert_pulses(made[0], integral(pitch)[:-1], by_sample(pitch)[:-1])


@given(st.data(), pitches)
@settings(deadline=None)
def test_given_phases_are_joined_by_cubics(data: st.DataObject, pitch: list[float]) -> None:
    """Any phases at the middles: the curve through them is the Hermite spline whose slopes are the pitches, with as
    many whole cycles between two middles as come nearest to the mean pitch."""
    count = len(pitch)
    off = np.array(data.draw(st.lists(st.floats(-0.45, 0.45), min_size=count, max_size=count)))
    slopes = np.array(pitch) * HOP / SAMPLE_RATE
    steps = (slopes[1:] + slopes[:-1]) / 2 + off[1:]
    middles = np.concatenate(([off[0]], off[0] + np.cumsum(steps)))
    around = np.concatenate(([middles[0] - slopes[0]], middles, [middles[-1] + slopes[-1]]))
    spline = CubicHermiteSpline(np.arange(-1, count + 1), around, np.concatenate((slopes[:1], slopes, slopes[-1:])))
    phase = spline((np.arange(count * HOP) - HALF) / HOP)
    made = pulses(row(pitch), torch.from_numpy(middles % 1.0)[None])
    assert_pulses(made[0], phase, by_sample(pitch)[:-1])


@given(st.integers(int(LOWEST), int(HIGHEST)), st.floats(0, 1))
@settings(deadline=None)
def test_a_steady_pitch_has_lines_at_its_harmonics_and_nowhere_else(pitch: int, phase: float) -> None:
    assume(TOP % pitch)  # a harmonic at the very limit may be there or not
    frames = SAMPLE_RATE // HOP  # a second, so that a whole number of periods is heard
    middles = phase + steady_middles(torch.full((1, frames), float(pitch)))
    made = pulses(torch.full((1, frames), float(pitch)), middles)[0].double().numpy()
    lines = np.abs(np.fft.rfft(made)) * np.sqrt(2) / SAMPLE_RATE  # root mean square of each component
    count = int(TOP // pitch)
    expected = np.zeros(len(lines))
    expected[pitch * np.arange(1, count + 1)] = np.sqrt(1 / count)
    np.testing.assert_allclose(lines, expected, atol=1e-4)
    assert (made**2).mean() == pytest.approx(1.0, abs=1e-4)


@given(st.floats(LOWEST, HIGHEST, width=32), st.floats(LOWEST, HIGHEST, width=32))
@settings(deadline=None, max_examples=30)
def test_no_harmonic_is_folded_back(begin: float, end: float) -> None:
    """Any glide within a second: next to nothing lies near the Nyquist frequency."""
    pitch = torch.linspace(begin, end, 100)[None]
    made = pulses(pitch, steady_middles(pitch))[0].double()
    spectrum = torch.fft.rfft(made * torch.hann_window(len(made), dtype=torch.float64)).abs().square()
    assert spectrum[11_800:].sum() < 1e-3 * spectrum.sum()
    assert (made**2).mean().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("pitch", "harmonics"), [(LOWEST, 230), (HIGHEST, 19)])
def test_the_limits_of_the_pitch(pitch: float, harmonics: int) -> None:
    track = torch.full((1, 10), pitch)
    made = pulses(track, steady_middles(track))
    assert made.isfinite().all()
    assert made[0, 0].item() == pytest.approx(np.sqrt(2 * harmonics)), "at phase 0 all of them are at their highest"
    assert made.abs().max().item() == pytest.approx(np.sqrt(2 * harmonics), rel=1e-3)


@pytest.mark.parametrize(("bias", "pitch"), [(-20.0, LOWEST), (20.0, HIGHEST)])
def test_no_net_leaves_the_limits(bias: float, pitch: float) -> None:
    torch.manual_seed(0)
    net = VoiceBoxNet(VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)).eval()
    torch.nn.init.constant_(net.pitch.bias, bias)
    codes, symbols = torch.arange(6)[None], torch.zeros(1, 6, SYMBOL_WINDOW, dtype=torch.long)
    filters = net.filters(net.quantizer.values(codes), symbols, torch.zeros_like(codes))
    assert filters.pitch.unique().tolist() == [pitch]
    assert net.decode(codes, symbols).isfinite().all()


@given(pitches, st.data())
@settings(deadline=None)
def test_a_part_of_a_track_is_that_part_of_the_whole(pitch: list[float], data: st.DataObject) -> None:
    """From the part's first middle to its last: outside them the pitch of what is not there is not known."""
    first = data.draw(st.integers(0, len(pitch) - 1))
    last = data.draw(st.integers(first + 1, len(pitch)))
    track, middles = row(pitch), steady_middles(row(pitch))
    whole, part = pulses(track, middles), pulses(track[:, first:last], middles[:, first:last])
    inside = slice(HALF, (last - first) * HOP - HALF + 1)
    torch.testing.assert_close(part[:, inside], whole[:, first * HOP : last * HOP][:, inside], atol=1e-3, rtol=0)


@given(pitches, st.data())
@settings(deadline=None)
def test_whole_cycles_do_not_count(pitch: list[float], data: st.DataObject) -> None:
    count = len(pitch)
    phases = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=count, max_size=count)))
    cycles = data.draw(st.lists(st.integers(-100_000, 100_000), min_size=count, max_size=count))
    slopes = np.array(pitch) * HOP / SAMPLE_RATE
    rise = np.diff(phases) - (slopes[1:] + slopes[:-1]) / 2
    # Half a cycle off the mean pitch, going faster is as near as going slower.
    assume((np.abs(np.abs(rise - np.round(rise)) - 0.5) > 1e-6).all())
    once = pulses(row(pitch), torch.from_numpy(phases)[None])
    again = pulses(row(pitch), torch.from_numpy(phases + np.array(cycles))[None])
    torch.testing.assert_close(once, again, atol=2e-2, rtol=0)


@given(st.floats(110, 300), st.floats(0, 0.5), st.floats(0.2, 3.0))
@settings(deadline=None, max_examples=30)
def test_a_glide_beats_where_the_integral_says(middle: float, share: float, rate: float) -> None:
    """A smooth pitch, of which the frames only have samples; its own integral is scipy's."""

    def pitch(at: float) -> float:
        return middle * (1 + share * float(np.sin(2 * np.pi * rate * at)))

    frames = 60
    track = row([pitch((frame * HOP + HALF) / SAMPLE_RATE) for frame in range(frames)])
    made = pulses(track, steady_middles(track))[0].numpy()
    heights = np.array([np.sqrt(2 * TOP / pitch(at / SAMPLE_RATE)) for at in range(len(made))])
    highest = np.flatnonzero((made[1:-1] > made[:-2]) & (made[1:-1] >= made[2:]) & (made > 0.5 * heights)[1:-1]) + 1
    assert len(highest) > 0.5 * middle * frames * HOP / SAMPLE_RATE
    phases = np.array([quad(pitch, 0, at / SAMPLE_RATE)[0] for at in highest])
    # Straight lines for curves, most of all before the first middle: a twentieth of a cycle, and the nearest sample.
    away = np.abs(phases - np.round(phases))
    assert away.max() < 0.05, away.max()
    counts = np.round(phases).astype(int)
    assert set(np.diff(counts).tolist()) <= {1}, "no beat is missing and none comes twice"


def test_sequences_do_not_touch() -> None:
    generator = torch.Generator().manual_seed(0)
    pitch = LOWEST + (HIGHEST - LOWEST) * torch.rand(3, 20, generator=generator)
    middles = steady_middles(pitch)
    every = pulses(pitch, middles)
    for number in range(3):
        inside = slice(number, number + 1)
        torch.testing.assert_close(steady_middles(pitch[inside]), middles[inside])
        torch.testing.assert_close(pulses(pitch[inside], middles[inside]), every[inside], atol=1e-3, rtol=0)


@given(sizes, st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_spectra_of_frames_give_the_sound_again(size: tuple[int, int], batch: int, count: int, seed: int) -> None:
    window, hop = torch.hann_window(size[0]), size[1]
    sound = torch.randn(batch, count * hop, generator=torch.Generator().manual_seed(seed))
    spectra = frames_of(sound, window, hop)
    assert spectra.shape == (batch, count, size[0] // 2 + 1) and spectra.is_complex()
    again = overlap_add(spectra, window, hop)
    torch.testing.assert_close(again, sound, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(frames_of(again, window, hop), spectra, atol=1e-3, rtol=1e-3)


@given(sizes, st.integers(0, 11))
@settings(deadline=None)
def test_a_frame_lies_about_the_middle_of_its_hop(size: tuple[int, int], place: int) -> None:
    """A click in the middle of a hop is in the middle of that hop's frame: real, and of the window's full height."""
    length, hop = size
    sound = torch.zeros(1, 12 * hop)
    sound[0, place * hop + hop // 2] = 1.0
    spectrum = frames_of(sound, torch.hann_window(length), hop)[0, place]
    torch.testing.assert_close(spectrum.imag, torch.zeros(length // 2 + 1), atol=1e-4, rtol=0)
    signs = torch.where(torch.arange(length // 2 + 1) % 2 == 0, 1.0, -1.0)
    torch.testing.assert_close(spectrum.real, signs, atol=1e-4, rtol=0)


def test_the_noise_is_white_and_of_unit_power() -> None:
    spectra = noise_spectra()
    assert spectra.shape == (NOISE_FRAMES, NOISE_WINDOW // 2 + 1) and spectra.is_complex()
    power = spectra.abs().square()
    assert power.mean().item() == pytest.approx(1.0, abs=0.02)
    # Of 2048 overlapping frames about half are independent: the mean of a bin is off by 3 % (one in three by more).
    assert (power.mean(0) - 1).abs().max() < 0.25
    thirds = power.mean(0)[1:-1].view(-1).tensor_split(3)
    for part in thirds:
        assert part.mean().item() == pytest.approx(1.0, abs=0.03)
    inside = spectra[:, 1:-1]
    assert (inside.mean(0)).abs().max() < 0.2, "phases have no preference"
    apart = (inside[:-4] * inside[4:].conj()).mean(0)
    assert apart.abs().max() < 0.2, "frames that do not overlap have nothing to do with each other"


def test_the_noise_is_the_same_again_and_another_by_another_seed() -> None:
    assert torch.equal(noise_spectra(), noise_spectra(0))
    assert not torch.allclose(noise_spectra(), noise_spectra(1))


@given(st.integers(0, NOISE_FRAMES - 1))
@settings(deadline=None, max_examples=30)
def test_the_last_of_the_noise_goes_on_in_the_first(first: int) -> None:
    """Wherever it is read from, the frames are frames of one sound; so at the seam, too."""
    check_that_frames_agree(first)


@pytest.mark.parametrize("first", range(NOISE_FRAMES - 12, NOISE_FRAMES))
def test_the_noise_has_no_seam(first: int) -> None:
    check_that_frames_agree(first)


NOISE = noise_spectra()


def check_that_frames_agree(first: int) -> None:
    window = torch.hann_window(NOISE_WINDOW)
    spectra = NOISE[(first + torch.arange(12)) % NOISE_FRAMES][None]
    again = frames_of(overlap_add(spectra, window, NOISE_HOP), window, NOISE_HOP)
    beside = NOISE_WINDOW // NOISE_HOP  # the outermost frames overlap what is not there
    torch.testing.assert_close(again[:, beside:-beside], spectra[:, beside:-beside], atol=1e-4, rtol=1e-4)


def test_noise_filtered_by_a_level_is_as_loud_as_that_level() -> None:
    """Magnitudes of 1 are white noise whose windowed frames have unit power."""
    window = torch.hann_window(NOISE_WINDOW)
    sound = overlap_add(NOISE[None], window, NOISE_HOP)
    expected = 1 / window.square().sum().sqrt().item()
    assert sound.std().item() == pytest.approx(expected, rel=0.01)

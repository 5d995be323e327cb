"""The server's own voice, coming back by the microphone, told from the user's. Pure numpy; no clock of its own.

A loudspeaker or a telephone hybrid returns what was sent 0 to 800 ms later, 10 to 40 dB weaker, through a room and a
codec. :class:`EchoGuard` knows what was sent. It looks for it in what comes in by whitened cross-correlation (GCC-PHAT,
Knapp and Carter 1976), learns how strong it returns in each of 17 bands of half an octave or less, and gives the
detectors the quiet of the room instead of frames that the echo explains. A frame with more in it than that, as of
somebody who talks over the echo, is given as it came. Nobody's words are changed: only what detectors hear is.

Everything is done at 8 kHz, the band that every path has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, FRAME_MS, FRAME_SAMPLES, PCM_RATE, EarsPcm, Pcm
from voicechat.media.playout import SILENCE

Floats = npt.NDArray[np.float64]

RATE = 8000
MAX_DELAY_MS = 800
"""Longest way from what was sent to what comes in."""

EARLY_MS = 80
"""So much later than it was may sound have been told of: the two come by different ways, and not evenly."""

DOUBT_FRAMES = 7
"""Until it is known whether there is an echo, so many frames of sound in a row are withheld from the detectors: so long
it takes to find one."""

CLEAR_FRAMES = 75
"""After so many frames of a reply without an echo, nothing is withheld any more."""

_FRAME = RATE * FRAME_MS // 1000
_WINDOW = 256
_LAGS = RATE * MAX_DELAY_MS // 1000
_EARLY = RATE * EARLY_MS // 1000
_SPAN = RATE * 240 // 1000
"""Of the microphone, so much is looked for in what was sent."""
_SHORTEST = 4
"""Frames of sound in which an echo may be found."""
_KEPT = 1 << 14
_EDGES = (125, 200, 300, 400, 510, 630, 770, 920, 1080, 1270, 1480, 1720, 2000, 2320, 2700, 3000, 3300, 3600)
_TAIL = 0.60
"""How much of a band's power a room keeps for 20 ms: a reverberation time of 0.5 s."""
_MEMORY = 0.985
"""Gains are of the last 1.3 s of echo."""
_GROWTH = 1.5
_ROOM = 1.5
"""A room makes single moments of a band stronger than it is on the whole."""
_MARGIN = 2.5
"""A band is explained by up to so many times the power that is expected."""
_SHARE = 0.2
"""A frame is explained if the bands that are not hold less than this share of it."""
_ACTIVE = 6.0
"""A frame is sound if it is so many times stronger than the quiet."""
_RISE, _RISE_ACTIVE = 1.03, 1.003
"""How fast the quiet may grow, per frame: by 6 dB in a second, or in five while there is sound."""
_SEEN = 14.0
"""How far a peak of the correlation stands out, in standard deviations, to be an echo; seen twice, it is one."""
_ALONE = 1.4
"""How many times higher it must be than any other: two voices are a little like each other at many delays."""
_SEEN_AGAIN = 5.0
"""The same where the echo is known to be."""
_SURE = 8
"""An echo that was seen where it is known to be so often gives way only to another that is seen as often."""
_APART = RATE * 500 // 1000
"""What came in and what was sent are counted by the same clock, and brought together when they are so far apart."""
_BROAD = 0.01
"""What takes up less of the spectrum than this share is not looked for."""
_NEAR = RATE * 4 // 1000
_LOST = 100
"""Frames of sound without a peak after which the echo is looked for anew."""
_MOST_GAIN = 2.0


class EchoGuard:
    """Of one session: :meth:`sent` takes what leaves, :meth:`heard` what comes in, each in order and in real time."""

    def __init__(self) -> None:
        self._sent = _History(PCM_RATE)
        self._mic = _History(EARS_RATE)
        self._expected = np.zeros(len(_EDGES) - 1)  # power in the room of what was sent, before the gains
        self._lag: int | None = None
        self._candidate: int | None = None
        self._gain = np.zeros(len(_EDGES) - 1)
        self._heard = np.zeros(len(_EDGES) - 1)  # power that came in, and that was told of, of late
        self._told = np.zeros(len(_EDGES) - 1)
        self._recent: list[tuple[Floats, int]] = []
        self._floor: float | None = None
        self._band_floor = np.zeros(len(_EDGES) - 1)
        self._quiet = 0.0  # power of the microphone while nothing is heard
        self._loud_until = -1  # by the count of what was sent
        self._run = 0
        self._watched = 0
        self._unseen = 0
        self._sightings = 0  # of the echo where it is known to be
        self._seen_there = 0  # of the candidate, one after the other
        self._pause = 0  # frames until the echo is looked for again
        self._rng = np.random.default_rng(1)

    @property
    def delay_ms(self) -> float | None:
        """How late the echo comes, if there is one."""
        return None if self._lag is None else 1000 * self._lag / RATE

    def sent(self, pcm: Pcm) -> None:
        """20 ms that leave now: int16 ``[480]`` at 24 kHz, silence included."""
        if pcm is not SILENCE and pcm.any():
            self._sent.push(pcm / np.float64(32768))
            self._loud_until = self._sent.count + _LAGS + 25 * _FRAME
        else:
            self._sent.skip(_FRAME)

    def missed(self, frames: int) -> None:
        """So many frames of 20 ms did not come in."""
        self._mic.skip(frames * _FRAME)

    def heard(self, frame: EarsPcm) -> EarsPcm:
        """What detectors are to hear of 20 ms that came in (float32 ``[320]``)."""
        if self._mic.count == 0 or abs(self._sent.count - self._mic.count) > _APART:
            self._mic.skip(self._sent.count - self._mic.count)
            self._forget()
        active = self._is_active(frame)
        if self._sent.count > self._loud_until:
            self._mic.skip(_FRAME)
            self._run = 0
            return frame
        self._mic.push(frame.astype(np.float64))
        self._run = self._run + 1 if active else 0
        if self._lag is not None:
            return self._guarded(frame, self._power(active), active)
        self._watched += 1
        if not active:
            self._pause = 0
            self._power(active)
            return frame
        self._recent = [*self._recent[-9:], (self._power(active), self._mic.count)]
        self._pause -= 1
        if self._run >= _SHORTEST and self._pause <= 0:
            self._pause = 1 if self._watched < CLEAR_FRAMES else 4
            if self._search():
                return self._guarded(frame, self._power(active), active)
        if self._watched < CLEAR_FRAMES and self._run <= DOUBT_FRAMES and self._can_be_seen(self._candidates(_SPAN)):
            return self._in_its_place()
        return frame

    def _is_active(self, frame: EarsPcm) -> bool:
        """True if there is more in the microphone than the quiet of the room."""
        tilted = frame[1:] - np.float32(0.95) * frame[:-1]
        level, whole = float(tilted @ tilted) / FRAME_SAMPLES, float(frame @ frame) / FRAME_SAMPLES
        if self._floor is None:
            self._floor, self._quiet = min(level, 1e-6), min(whole, 1e-6)
        active = level > _ACTIVE * self._floor + 1e-10
        rise = self._rise(active)
        self._floor = min(self._floor * rise + 1e-14, self._floor + 0.2 * (level - self._floor))
        self._quiet = min(self._quiet * rise + 1e-14, self._quiet + 0.2 * (whole - self._quiet))
        return active

    def _rise(self, active: bool) -> float:
        """How much the quiet may grow in this frame: not while an echo may be in it."""
        told = self._lag is not None and float(self._gain @ self._expected) > float(self._band_floor.sum())
        return 1.0 if told else _RISE_ACTIVE if active else _RISE

    def _power(self, active: bool) -> Floats:
        """Of the microphone now, in each band; its quiet is followed."""
        power = _band_power(self._mic.last(_WINDOW))
        floor = self._band_floor
        if not floor.any():
            floor = np.minimum(power, 1e-6)
        self._band_floor = np.minimum(floor * self._rise(active) + 1e-14, floor + 0.2 * (power - floor))
        return power

    def _guarded(self, frame: EarsPcm, power: Floats, active: bool) -> EarsPcm:
        told = self._told_at(self._mic.count)
        self._expected = np.maximum(told, _TAIL * self._expected)
        explained = self._explains(power)
        if active:
            self._recent = [*self._recent[-9:], (power, self._mic.count)]
            self._pause -= 1
            if self._pause <= 0:
                self._pause = 8 if explained else 3
                before = self._lag
                self._unseen = 0 if self._search() else self._unseen + self._pause
                if self._lag != before:
                    explained = self._explains(power)
        if explained:
            self._learn(power, told)
        if self._unseen > _LOST or float(self._gain.max()) < 1e-7:
            self._forget()
            return frame
        return self._in_its_place() if explained else frame

    def _told_at(self, moment: int) -> Floats:
        """Power of what was sent and can be heard at ``moment`` of the microphone, before the gains."""
        assert self._lag is not None
        end = moment - self._lag
        return _band_power(self._sent.between(end - _WINDOW, end))

    def _explains(self, power: Floats) -> bool:
        most = _MARGIN * self._gain * self._expected + 4 * self._band_floor
        beyond = power > most
        return float(power[beyond].sum()) < _SHARE * float(power.sum())

    def _learn(self, power: Floats, told: Floats) -> None:
        """Follow the gains, by a moment that the echo explains."""
        if float(told.sum()) > 0.1 * float(self._expected.sum()):  # else it is the room's tail that is heard
            # a voice that hides in the margin shall not widen it
            most = _GROWTH * told * self._heard / (self._told + 1e-12)
            self._heard = _MEMORY * self._heard + np.clip(power - self._band_floor, 0.0, most)
            self._told = _MEMORY * self._told + told
            self._set_gain()

    def _set_gain(self) -> None:
        """By what was heard and told of; a band that was hardly told of has the gain of the whole, and more."""
        whole = float(self._heard.sum() / (self._told.sum() + 1e-12))
        enough = self._told / (self._told + 1e-3 * float(self._told.mean()) + 1e-12)
        gain = enough * self._heard / (self._told + 1e-12) + (1 - enough) * 4 * whole
        self._gain = np.clip(_ROOM * gain, whole / 8, _MOST_GAIN)

    def _search(self) -> bool:
        """Look for what was sent in what came in lately; True if it is where it was, or is found now."""
        count = min(_SPAN, max(_SHORTEST, self._run + 1) * _FRAME)
        segment, told = self._mic.last(count), self._candidates(count)
        if not self._can_be_seen(told):
            return False
        found = _correlate(segment, told)
        spread = float(found.std()) + 1e-20
        if self._lag is not None:
            here = max(0, _LAGS - self._lag - _NEAR)
            near = found[here : here + 2 * _NEAR + 1]
            if len(near) and float(near.max()) > _SEEN_AGAIN * spread:
                self._lag = _LAGS - here - int(np.argmax(near))
                self._sightings = min(self._sightings + 1, _SURE)
                self._candidate = None
                return True
        peak = int(np.argmax(found))
        rest = max(found[: max(0, peak - _NEAR)].max(initial=0.0), found[peak + _NEAR + 1 :].max(initial=0.0))
        if float(found[peak]) < max(_SEEN * spread, _ALONE * float(rest)):
            return False
        lag = _LAGS - peak
        self._seen_there = self._seen_there + 1 if self._candidate and abs(lag - self._candidate) <= _NEAR else 1
        self._candidate, self._pause = lag, min(self._pause, 2)
        if self._seen_there < 2 + (self._sightings if self._lag is not None else 0):
            return False
        self._lock(lag)
        return True

    def _candidates(self, count: int) -> Floats:
        """What was sent that may be in the last ``count`` samples of the microphone."""
        return self._sent.between(self._mic.count - count - _LAGS, self._mic.count + _EARLY)

    @staticmethod
    def _can_be_seen(told: Floats) -> bool:
        """False for nothing, and for a tone: it is like itself at many delays."""
        return float(told @ told) >= 1e-6 and _spread(told) >= _BROAD

    def _lock(self, lag: int) -> None:
        """An echo is there: its gains at first are those of the frames just heard."""
        self._lag, self._candidate, self._unseen, self._pause, self._sightings = lag, None, 0, 2, 0
        moments = [(np.maximum(0.0, power - self._band_floor), self._told_at(at)) for power, at in self._recent]
        self._heard = np.sum([power for power, _ in moments], axis=0)
        self._told = np.sum([told for _, told in moments], axis=0)
        self._expected = moments[-1][1]
        self._set_gain()

    def _forget(self) -> None:
        self._lag = self._candidate = None
        self._recent.clear()
        self._unseen = 0

    def _in_its_place(self) -> EarsPcm:
        """Noise as strong as the quiet of the room."""
        noise = self._rng.standard_normal(FRAME_SAMPLES, np.float32)
        return noise * np.float32(self._quiet**0.5)


class _History:
    """The last two seconds of a stream, at 8 kHz, with pre-emphasis; ``count`` is of samples since it began."""

    def __init__(self, rate: int) -> None:
        self._step = rate // RATE
        taps = 8 * self._step + 1
        ideal = np.sinc((np.arange(taps) - taps // 2) / self._step * 0.95) * np.hamming(taps)
        low_pass = ideal / ideal.sum()
        late = np.concatenate([np.zeros(self._step), low_pass])
        self._filter = np.concatenate([low_pass, np.zeros(self._step)]) - 0.95 * late
        self._tail = np.zeros(len(self._filter) - 1)
        self._ring = np.zeros(2 * _KEPT)
        self.count = 0

    def push(self, samples: Floats) -> None:
        """20 ms more."""
        whole = np.concatenate([self._tail, samples])
        self._tail = whole[len(samples) :]
        self._write(np.convolve(whole, self._filter, mode="valid")[:: self._step])

    def skip(self, count: int) -> None:
        """Count ``count`` samples on (or back), in silence."""
        self._tail[:] = 0
        if 0 <= count < _KEPT:
            self._write(np.zeros(count))
        else:
            self._ring[:] = 0
            self.count += count

    def _write(self, made: Floats) -> None:
        at = self.count % _KEPT
        end = at + len(made)
        self._ring[at:end] = made
        self._ring[at + _KEPT : min(end + _KEPT, 2 * _KEPT)] = made[: 2 * _KEPT - at - _KEPT]
        if end > _KEPT:
            self._ring[: end - _KEPT] = made[_KEPT - at :]
        self.count += len(made)

    def last(self, count: int) -> Floats:
        """The last ``count`` samples."""
        return self.between(self.count - count, self.count)

    def between(self, start: int, end: int) -> Floats:
        """Samples ``start`` to ``end``; zeros for what is too old, or is not there yet."""
        first, last = max(start, self.count - _KEPT, 0), min(end, self.count)
        if last <= first:
            return np.zeros(end - start)
        at = first % _KEPT
        found = self._ring[at : at + last - first]
        return np.concatenate([np.zeros(first - start), found, np.zeros(end - last)])


def _bands_of_bins() -> Floats:
    """Which bins of a spectrum make up which band: ``[bands, bins]``."""
    bins = np.fft.rfftfreq(_WINDOW, 1 / RATE)
    return np.array([(bins >= low) & (bins < high) for low, high in zip(_EDGES, _EDGES[1:], strict=False)], float)


_OF_BINS = _bands_of_bins()
_TAPER = np.hanning(_WINDOW)
_SCALE = 4.0 / _WINDOW**2


def _band_power(samples: Floats) -> Floats:
    """Power of ``[256]`` samples in each band."""
    spectrum = np.fft.rfft(samples * _TAPER)
    made: Floats = _OF_BINS @ (spectrum.real**2 + spectrum.imag**2) * _SCALE
    return made


def _spread(samples: Floats) -> float:
    """The share of the spectrum that the sound takes up: 1 for white noise, next to 0 for a tone."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    return float(power.sum() ** 2 / (len(power) * (power @ power) + 1e-30))


def _correlate(segment: Floats, told: Floats) -> Floats:
    """How well ``segment`` fits at each place of ``told``, whitened; of either sign."""
    size = 1 << (len(told) - 1).bit_length()
    cross = np.fft.rfft(told, size) * np.conj(np.fft.rfft(segment, size))
    strength = np.abs(cross)
    floor = 1e-2 * float(strength.mean()) + 1e-20
    found: Floats = np.abs(np.fft.irfft(cross / (strength + floor) ** 0.85, size)[: len(told) - len(segment) + 1])
    return found

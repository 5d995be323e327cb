// Loudness of the microphone and of the answer, for meters only: nothing of it is heard or sent.

const FLOOR_DB = -55;
const CEILING_DB = -12;

export class Level {
  /** Called about 30 times a second with (input, output), each 0..1. */
  onlevel = () => {};
  #context = null;
  #probes = new Map();
  #timer = 0;

  /** To be called from a click, else browsers keep the audio clock still. */
  open() {
    this.#context ??= new AudioContext();
    this.#context.resume();
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.onlevel(this.read("input"), this.read("output")), 33);
  }

  listen(name, stream) {
    if (!this.#context) return;
    const source = this.#context.createMediaStreamSource(stream);
    const analyser = this.#context.createAnalyser();
    analyser.fftSize = 1024;
    source.connect(analyser);
    this.#probes.get(name)?.source.disconnect();
    this.#probes.set(name, { source, analyser, samples: new Float32Array(analyser.fftSize) });
  }

  /** Loudness of one stream now, 0..1 on a scale in decibels. */
  read(name) {
    const decibels = 20 * Math.log10(this.rms(name) || 1e-9);
    return Math.min(1, Math.max(0, (decibels - FLOOR_DB) / (CEILING_DB - FLOOR_DB)));
  }

  /** Root mean square of the last 1024 samples of one stream, full scale 1. */
  rms(name) {
    const probe = this.#probes.get(name);
    if (!probe) return 0;
    probe.analyser.getFloatTimeDomainData(probe.samples);
    return Math.sqrt(probe.samples.reduce((sum, value) => sum + value * value, 0) / probe.samples.length);
  }

  close() {
    clearInterval(this.#timer);
    for (const { source } of this.#probes.values()) source.disconnect();
    this.#probes.clear();
    this.onlevel(0, 0);
    this.#context?.suspend();
  }
}

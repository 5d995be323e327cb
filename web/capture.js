// What was received of each answer, as it came out of the browser's decoder, and as a WAV file. Knows nothing of the page.

const LONGEST_S = 60;
const WORKLET = "capture-worklet.js";

/** Follows one stream at a time; `begin` opens a clip of it, and the last LONGEST_S of each clip are kept. */
export class Capture {
  #context = null;
  #source = null;
  #node = null;
  #clip = null;

  /** To be called from a click, else browsers keep the audio clock still. */
  open() {
    this.#context ??= new AudioContext();
    this.#context.resume();
  }

  async listen(stream) {
    const context = this.#context;
    if (!context?.audioWorklet) return; // an insecure page: there is nothing to check answers with
    if (!this.#node) {
      await context.audioWorklet.addModule(WORKLET);
      this.#node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
      this.#node.port.onmessage = ({ data }) => this.#take(data);
    }
    this.#source?.disconnect();
    this.#source = context.createMediaStreamSource(stream);
    this.#source.connect(this.#node);
  }

  get working() {
    return this.#node !== null;
  }

  /** A new clip begins; the one before is as long as it got. */
  begin() {
    this.#clip = { blocks: [], rate: this.#context?.sampleRate ?? 48_000, samples: 0 };
    return this.#clip;
  }

  /** No more is taken for `clip`. */
  end(clip) {
    if (this.#clip === clip) this.#clip = null;
  }

  close() {
    this.#clip = null;
    this.#source?.disconnect();
    this.#source = null;
    this.#context?.suspend();
  }

  #take(block) {
    const clip = this.#clip;
    if (!clip) return;
    clip.blocks.push(block);
    clip.samples += block.length;
    while (clip.samples - clip.blocks[0].length > LONGEST_S * clip.rate) clip.samples -= clip.blocks.shift().length;
  }
}

/** A clip as a WAV file (mono, 16 bit). */
export function toWav({ blocks, rate, samples }) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples));
  const text = (at, word) => [...word].forEach((letter, index) => data.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples, true);
  text(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true);
  data.setUint16(22, 1, true);
  data.setUint32(24, rate, true);
  data.setUint32(28, 2 * rate, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  text(36, "data");
  data.setUint32(40, 2 * samples, true);
  let at = 44;
  for (const block of blocks) {
    for (const value of block) {
      data.setInt16(at, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true);
      at += 2;
    }
  }
  return new Blob([data.buffer], { type: "audio/wav" });
}

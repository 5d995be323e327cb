// Hands the sound of one stream on, a block at a time. Runs on the audio thread.

class Capture extends AudioWorkletProcessor {
  process([input]) {
    if (input.length) this.port.postMessage(input[0].slice());
    return true;
  }
}

registerProcessor("capture", Capture);

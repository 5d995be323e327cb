// Whether a sound was made by this server: asks it, and shows what it says. The marks are looked for on the server.

import { toWav } from "./capture.js";

const CHECKS = "v1/content_provenance_checks";
const MARK = "voicechat_watermark";
const DRAWN_BYTES = 64 << 20; // a larger file is not decoded here, only checked
const LONGEST_RECORDING_MS = 60_000;

/** Sends a file to be checked. Resolves with { mark, credential }; rejects with an Error in words for people. */
export async function check(file, key) {
  const form = new FormData();
  form.append("file", file, file.name ?? "answer.wav");
  let response;
  try {
    response = await fetch(CHECKS, { method: "POST", headers: key ? { Authorization: `Bearer ${key}` } : {}, body: form });
  } catch {
    throw new Error("The server can't be reached.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error?.message ?? `The server answered ${response.status}.`);
  const find = (type) => body.results.find((result) => result.type === type);
  return { mark: find(MARK), credential: find("c2pa") };
}

/** One line that says what was found. */
export function verdict({ outcome, payload, made_here }) {
  if (outcome !== "detected") return "No mark found";
  const name = payload === null ? "payload unreadable" : `payload ${hex(payload)}`;
  return `${made_here ? "Marked by this server" : "Marked by another deployment"}, ${name}`;
}

const hex = (payload) => payload.toString(16).padStart(4, "0");
const clock = (seconds) => `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;

/** A button that checks one answer's clip, once it is pressed. `key()` gives the access key. */
export function badge(clip, key) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "badge";
  button.textContent = "Check the mark";
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    button.textContent = "Checking…";
    try {
      const { mark } = await check(toWav(clip), key());
      button.dataset.outcome = mark.outcome;
      button.textContent = verdict(mark);
      button.title = `One in ${chance(mark.p_value)} unmarked sounds looks like this.`;
    } catch (error) {
      button.dataset.outcome = "failed";
      button.textContent = error.message;
    }
    button.removeAttribute("aria-busy");
  });
  return button;
}

function chance(p) {
  return p > 0 ? (1 / p).toLocaleString("en", { notation: "compact", maximumSignificantDigits: 2 }) : "countless";
}

/** The dialog in which a file is dropped, chosen or recorded. */
export class CheckDialog {
  #dialog;
  #key;
  #recorder = null;
  #turn = 0;

  constructor(dialog, key) {
    this.#dialog = dialog;
    this.#key = key;
    const input = this.#part("#check-file");
    const zone = this.#part("#check-zone");
    input.addEventListener("change", () => input.files.length && this.#show(input.files[0]));
    zone.addEventListener("dragover", (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
    for (const over of ["dragleave", "drop"]) zone.addEventListener(over, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer.files;
      if (file) this.#show(file);
    });
    this.#part("#check-record").addEventListener("click", () => (this.#recorder ? this.#stop() : this.#record()));
    this.#part("#check-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => this.#stop());
  }

  open() {
    this.#dialog.showModal();
  }

  #part(selector) {
    return this.#dialog.querySelector(selector);
  }

  #say(text, outcome = "") {
    const line = this.#part("#check-verdict");
    line.textContent = text;
    line.dataset.outcome = outcome;
  }

  async #record() {
    let stream;
    try {
      // as it sounds: what browsers do to speech in calls takes marks away
      const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
      stream = await navigator.mediaDevices.getUserMedia({ audio: plain });
    } catch {
      this.#say("The microphone can't be used. Allow it for this page, or choose a file.", "failed");
      return;
    }
    const parts = [];
    const recorder = new MediaRecorder(stream);
    const limit = setTimeout(() => this.#stop(), LONGEST_RECORDING_MS);
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", () => {
      clearTimeout(limit);
      for (const track of stream.getTracks()) track.stop();
      if (this.#dialog.open) this.#show(new File(parts, "recording", { type: recorder.mimeType }));
    });
    recorder.start();
    this.#recorder = recorder;
    this.#part("#check-record").setAttribute("aria-pressed", "true");
    this.#part("#check-record").textContent = "Stop and check";
    this.#say("Recording…");
  }

  #stop() {
    if (this.#recorder?.state === "recording") this.#recorder.stop();
    this.#recorder = null;
    this.#part("#check-record").setAttribute("aria-pressed", "false");
    this.#part("#check-record").textContent = "Record";
  }

  async #show(file) {
    const turn = ++this.#turn;
    this.#say("Checking…");
    this.#part("#check-result").hidden = true;
    try {
      const [found, peaks] = await Promise.all([check(file, this.#key()), outline(file)]);
      if (turn !== this.#turn) return;
      this.#fill(file.name, found, peaks);
    } catch (error) {
      if (turn === this.#turn) this.#say(error.message, "failed");
    }
  }

  #fill(name, { mark, credential }, peaks) {
    this.#say(verdict(mark), mark.outcome);
    this.#part("#check-result").hidden = false;
    const rows = mark.spans.map(({ start, end, payload, p_value }) => {
      const row = document.createElement("tr");
      const cells = [clock(start), clock(end), payload === null ? "unreadable" : hex(payload), p_value.toExponential(0)];
      row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      return row;
    });
    this.#part("#check-spans tbody").replaceChildren(...rows);
    this.#part("#check-spans").hidden = !rows.length;
    const signed = {
      trusted: `Signed by ${credential?.issuer ?? "someone"}, whom this server trusts.`,
      valid: `Signed by ${credential?.issuer ?? "someone"}; nobody that this server knows stands for them.`,
      invalid: "Its signature does not hold: the file was changed, or is damaged.",
      not_present: "It has no signed metadata.",
    };
    this.#part("#check-signature").textContent = signed[credential?.validation_state] ?? "";
    const canvas = this.#part("#check-wave");
    canvas.setAttribute("aria-label", `Waveform of ${name}: ${rows.length} marked part${rows.length === 1 ? "" : "s"}`);
    draw(canvas, peaks, mark);
  }
}

/** Peaks of a file's sound, 600 of them, 0..1; null if the browser can't decode it. */
async function outline(file) {
  if (file.size > DRAWN_BYTES) return null;
  try {
    const context = new OfflineAudioContext(1, 1, 8_000);
    const sound = (await context.decodeAudioData(await file.arrayBuffer())).getChannelData(0);
    const step = Math.max(1, Math.ceil(sound.length / 600));
    const peaks = [];
    for (let at = 0; at < sound.length; at += step) {
      peaks.push(sound.subarray(at, at + step).reduce((peak, value) => Math.max(peak, Math.abs(value)), 0));
    }
    return peaks;
  } catch {
    return null; // the server may know the format all the same
  }
}

function draw(canvas, peaks, { duration, spans }) {
  const style = getComputedStyle(canvas);
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  const place = (seconds) => (duration ? (seconds / duration) * width : 0);
  paint.fillStyle = style.getPropertyValue("--marked");
  for (const { start, end } of spans) paint.fillRect(place(start), 0, Math.max(2, place(end) - place(start)), height);
  paint.fillStyle = style.getPropertyValue("--text");
  const bars = peaks ?? [0];
  const loudest = Math.max(...bars, 0.02);
  bars.forEach((peak, index) => {
    const tall = Math.max(1, (peak / loudest) * (height - 8));
    paint.fillRect((index * width) / bars.length, (height - tall) / 2, Math.max(1, width / bars.length - 0.5), tall);
  });
  paint.fillStyle = style.getPropertyValue("--accent");
  for (const { start, end } of spans) paint.fillRect(place(start), height - 3, Math.max(2, place(end) - place(start)), 3);
}

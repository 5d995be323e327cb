// The page: one button, what is being said, and how it goes. The call itself is in call.js.

import { Call, CallError } from "./call.js";
import { Capture } from "./capture.js";
import { Level } from "./level.js";
import { Camera, shrink } from "./pictures.js";
import { badge, CheckDialog } from "./provenance.js";

const $ = (id) => document.getElementById(id);
const page = document.body;
const conversation = $("conversation");
const speaker = $("speaker");

const STATUS = {
  idle: "Ready when you are",
  connecting: "Connecting…",
  listening: "Listening",
  hearing: "Hearing you",
  thinking: "Thinking…",
  speaking: "Speaking",
};

let call = null;
let muted = false;
let typedOnly = false;
let state = "idle";
let owed = false; // something was said that has no sound yet
let generating = false; // a response is being made
let sounding = false; // a response is heard, or waits because you may be interrupting
const items = new Map(); // item id -> { bubble, note }
const responses = new Map(); // response id -> item id
const level = new Level();
const capture = new Capture();
const clips = new Map(); // response id -> what was received of its sound
const accessKey = () => sessionStorage.getItem("key") ?? "";
const checks = new CheckDialog($("check"), accessKey);
const camera = new Camera($("camera"));
const TAIL_MS = 300; // the last sound is still on its way through the browser

function setState(next) {
  state = next;
  page.dataset.state = next;
  let text = STATUS[next];
  if (next === "listening" && typedOnly) text = "Connected. Type a message";
  if (next === "listening" && muted) text = "Muted";
  $("status").textContent = text;
  $("talk-label").textContent = next === "idle" ? "Talk" : "End";
  $("mute").disabled = next === "idle" || next === "connecting" || typedOnly;
}

function setMuted(next) {
  muted = next;
  $("mute").setAttribute("aria-pressed", String(muted));
  $("mute-label").textContent = muted ? "Unmute" : "Mute";
  if (muted) page.dataset.muted = "true";
  else delete page.dataset.muted;
}

function showAlert(message) {
  $("alert-text").textContent = message;
  $("alert").hidden = !message;
}

function bubbleFor(itemId, role) {
  let item = items.get(itemId);
  if (!item) {
    const row = document.createElement("li");
    row.className = role;
    const who = document.createElement("span");
    who.className = "hidden";
    who.textContent = role === "user" ? "You: " : "Answer: ";
    const bubble = document.createElement("div");
    bubble.className = "bubble";
    const note = document.createElement("small");
    note.className = "note";
    row.append(who, bubble, note);
    conversation.append(row);
    item = { row, bubble, note };
    items.set(itemId, item);
    page.classList.remove("empty");
  }
  return item;
}

function setText(itemId, role, text) {
  const { row, bubble } = bubbleFor(itemId, role);
  bubble.textContent = text;
  bubble.classList.toggle("waiting", !text);
  row.scrollIntoView({ block: "end" });
}

function dropItem(itemId) {
  items.get(itemId)?.row.remove();
  items.delete(itemId);
}

function settle() {
  if (state === "hearing" || state === "thinking") setState(sounding ? "speaking" : owed ? "thinking" : "listening");
}

/** Puts a badge on an answer that was heard; pressing it checks what was received. */
function offerCheck(responseId) {
  const clip = clips.get(responseId);
  const item = items.get(responses.get(responseId));
  clips.delete(responseId);
  if (!clip || !item || !capture.working) return;
  setTimeout(() => {
    capture.end(clip);
    item.row.append(badge(clip, accessKey));
    item.row.scrollIntoView({ block: "end" });
  }, TAIL_MS);
}

const handlers = {
  "session.created"({ session }) {
    $("model").textContent = session.model ?? "";
    $("model").hidden = !session.model;
  },
  "input_audio_buffer.speech_started"({ item_id }) {
    setState("hearing");
    setText(item_id, "user", "");
  },
  "input_audio_buffer.speech_stopped"() {
    if (state === "hearing") setState("thinking");
  },
  "input_audio_buffer.committed"() {
    owed = true;
  },
  "input_audio_buffer.cleared"() {
    for (const [id, { row, bubble }] of items) {
      if (row.classList.contains("user") && !bubble.hasChildNodes()) dropItem(id);
    }
    settle();
  },
  "conversation.item.input_audio_transcription.completed"({ item_id, transcript }) {
    if (transcript) return setText(item_id, "user", transcript);
    dropItem(item_id);
    owed = false;
    settle();
  },
  "conversation.item.input_audio_transcription.failed"({ item_id, error }) {
    dropItem(item_id);
    owed = false;
    showAlert(`You could not be understood: ${error.message}`);
    settle();
  },
  "conversation.item.added"({ item }) {
    const text = item.content?.find((part) => part.type === "input_text")?.text;
    if (item.role === "user" && text) setText(item.id, "user", text);
  },
  "response.created"({ response }) {
    clips.set(response.id, capture.begin());
    generating = true;
    owed = true;
    if (state === "listening") setState("thinking");
  },
  "response.output_audio_transcript.delta"({ item_id, response_id, delta }) {
    responses.set(response_id, item_id);
    setText(item_id, "assistant", (items.get(item_id)?.bubble.textContent ?? "") + delta);
  },
  "output_audio_buffer.started"() {
    owed = false;
    sounding = true;
    if (state !== "hearing") setState("speaking");
  },
  "output_audio_buffer.stopped"({ response_id }) {
    sounding = false;
    offerCheck(response_id);
    if (state === "speaking") setState("listening");
  },
  "output_audio_buffer.cleared"({ response_id }) {
    sounding = false;
    offerCheck(response_id);
    if (state === "speaking") setState("listening");
  },
  "conversation.item.truncated"({ item_id }) {
    const item = items.get(item_id);
    if (item) item.note.textContent = "interrupted";
    call?.send({ type: "conversation.item.retrieve", item_id }); // what was heard of it
  },
  "conversation.item.retrieved"({ item }) {
    const shown = items.get(item.id);
    if (shown) shown.bubble.textContent = `${item.content?.[0]?.transcript ?? ""}…`;
  },
  "response.done"({ response }) {
    generating = false;
    const item = items.get(responses.get(response.id));
    const times = response.metadata ?? {};
    if (response.status === "failed") {
      const { code, message } = response.status_details?.error ?? {};
      showAlert(code === "rate_limit_exceeded" ? "The server is busy. Say it again in a moment." : `No answer: ${message}`);
    } else if (item && times.endpointing_ms && times.first_sound_ms) {
      const seconds = (Number(times.endpointing_ms) + Number(times.first_sound_ms)) / 1000;
      item.note.textContent ||= `answered after ${seconds.toFixed(1)} s`;
    }
    if (response.status !== "completed" || !item) {
      owed = false;
      settle();
    }
  },
  error({ error }) {
    const later = "The new voice will speak in your next call.";
    showAlert(error.code === "cannot_update_voice" ? later : error.message);
  },
};

async function startCall({ withMicrophone }) {
  showAlert("");
  $("key-form").hidden = true;
  typedOnly = !withMicrophone;
  owed = generating = sounding = false;
  setMuted(false);
  setState("connecting");
  level.open();
  capture.open();
  const mine = new Call(accessKey(), $("voice").value);
  call = mine;
  mine.addEventListener("event", ({ detail }) => handlers[detail.type]?.(detail));
  mine.addEventListener("track", ({ detail }) => {
    speaker.srcObject = detail;
    speaker.play().catch(() => showAlert("The browser does not let this page play sound. Press Talk again."));
    level.listen("output", detail);
    capture.listen(detail);
  });
  mine.addEventListener("ended", ({ detail }) => call === mine && endCall(detail));
  try {
    await mine.start({ withMicrophone });
  } catch (error) {
    if (call === mine) endCall(error);
    return false;
  }
  if (mine.microphone) level.listen("input", mine.microphone);
  if (state === "connecting") setState("listening");
  keepAwake();
  return true;
}

function endCall(error) {
  call = null;
  setMuted(false);
  level.close();
  capture.close();
  clips.clear();
  speaker.srcObject = null;
  for (const [id, { bubble }] of items) if (!bubble.hasChildNodes()) dropItem(id);
  if (!items.size) page.classList.add("empty");
  setState("idle");
  if (error instanceof CallError && error.code !== "ended") showAlert(error.message);
  if (error?.code === "key") {
    $("key-form").hidden = false;
    $("key").focus();
  }
}

/** Fills the choice of voices; it stays hidden where there is nothing to choose, or the server wants a key first. */
async function loadVoices() {
  const key = sessionStorage.getItem("key");
  let voices = [];
  try {
    const response = await fetch("v1/voices", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (response.ok) voices = (await response.json()).data;
  } catch {
    // the call will tell that the server can't be reached
  }
  const chosen = localStorage.getItem("voice");
  const options = voices.map(({ id, name, description }) => {
    const option = new Option(name, id, false, id === chosen);
    option.title = description ?? "";
    return option;
  });
  $("voice").replaceChildren(...options);
  $("voice-choice").hidden = voices.length < 2;
}

/** Offers to show pictures where the model sees them. */
async function loadSenses() {
  const key = accessKey();
  try {
    const response = await fetch("v1/models", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    const [model] = response.ok ? (await response.json()).data : [];
    $("pictures").hidden = !model?.input_modalities?.includes("image");
  } catch {
    // the call will tell that the server can't be reached
  }
}

/** Shows a picture (a File or an ImageBitmap) to the model; what is said or typed next may be about it. */
async function show(picture) {
  if (state === "connecting") return;
  if (!call && !(await startCall({ withMicrophone: false }))) return;
  try {
    const image_url = await shrink(picture, call.room);
    const id = `picture_${crypto.randomUUID().slice(0, 18)}`;
    const { row, bubble } = bubbleFor(id, "user");
    const shown = new Image();
    shown.alt = "The picture that you showed";
    shown.src = image_url;
    bubble.append(shown);
    row.scrollIntoView({ block: "end" });
    const content = [{ type: "input_image", image_url }];
    call.send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content } });
  } catch (error) {
    showAlert(error.message);
  }
}

async function keepAwake() {
  try {
    const lock = await navigator.wakeLock?.request("screen");
    call?.addEventListener("ended", () => lock?.release());
  } catch {
    // a nicety that some browsers refuse
  }
}

$("talk").addEventListener("click", () => (call ? call.end() : startCall({ withMicrophone: true })));

$("mute").addEventListener("click", () => {
  setMuted(!muted);
  if (call) call.muted = muted;
  if (state === "listening") setState("listening");
});

$("typed").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || state === "connecting") return;
  if (!call && !(await startCall({ withMicrophone: false }))) return;
  $("text").value = "";
  if (state === "thinking" || state === "speaking") {
    if (generating) call.send({ type: "response.cancel" });
    call.send({ type: "output_audio_buffer.clear" });
  }
  const content = [{ type: "input_text", text }];
  call.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  call.send({ type: "response.create" });
});

$("voice").addEventListener("change", () => {
  const voice = $("voice").value;
  localStorage.setItem("voice", voice);
  call?.send({ type: "session.update", session: { type: "realtime", audio: { output: { voice } } } });
});

$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value.trim());
  await Promise.all([loadVoices(), loadSenses()]);
  startCall({ withMicrophone: !typedOnly });
});

$("picture-choose").addEventListener("click", () => $("picture-file").click());
$("picture-file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  if (file) await show(file);
  target.value = ""; // the same file may be chosen again
});
$("picture-camera").addEventListener("click", () => camera.open().catch((error) => showAlert(error.message)));
camera.onpicture = show;

$("check-open").addEventListener("click", () => checks.open());
$("alert-close").addEventListener("click", () => showAlert(""));
addEventListener("pagehide", () => call?.end());

level.onlevel = (input, output) => {
  const shown = state === "speaking" ? output : muted ? 0 : input;
  document.documentElement.style.setProperty("--level", shown.toFixed(3));
  const heard = muted ? 0 : input;
  $("meter").setAttribute("aria-valuenow", String(Math.round(heard * 100)));
  document.querySelectorAll("#meter i").forEach((bar, index, bars) => {
    const centre = 1 - Math.abs(index - (bars.length - 1) / 2) / (bars.length / 2);
    bar.style.height = `${22 + 78 * heard * (0.35 + 0.65 * centre)}%`;
    bar.classList.toggle("on", heard > 0.04 + 0.3 * (1 - centre));
  });
};

setState("idle");
loadVoices();
loadSenses();

// One call to the server: microphone, loudspeaker and event channel over WebRTC. Knows nothing of the page.

const CALLS = "v1/realtime/calls";
const CONNECT_MS = 15_000;
const GATHER_MS = 400;
const LOST_MS = 5_000;

/** A failure with a message for people and a `code` for the page. */
export class CallError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/**
 * Emits `event` (detail: a server event), `track` (detail: MediaStream) and `ended`
 * (detail: CallError, or null if this side hung up).
 */
export class Call extends EventTarget {
  #peer = null;
  #channel = null;
  #microphone = null;
  #location = null;
  #key;
  #voice;
  #over = false;
  #lostTimer = 0;

  /** `voice` is the name of one; empty: the server's choice. */
  constructor(key = "", voice = "") {
    super();
    this.#key = key;
    this.#voice = voice;
  }

  get microphone() {
    return this.#microphone;
  }

  get peer() {
    return this.#peer;
  }

  /** Connects; resolves once events flow. Rejects with CallError. */
  async start({ withMicrophone = true } = {}) {
    try {
      if (withMicrophone) this.#microphone = await openMicrophone();
      if (this.#over) throw new CallError("ended", "The call was ended.");
      await this.#connect();
    } catch (error) {
      this.#release();
      throw error instanceof CallError ? error : new CallError("failed", `The call failed: ${error.message}`);
    }
  }

  send(event) {
    if (this.#channel?.readyState === "open") this.#channel.send(JSON.stringify(event));
  }

  set muted(muted) {
    for (const track of this.#microphone?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /** Hangs up. */
  end() {
    this.#finish(null);
  }

  async #connect() {
    const peer = new RTCPeerConnection({ iceServers: [] });
    this.#peer = peer;
    peer.addEventListener("track", ({ track, streams }) => {
      this.#emit("track", streams[0] ?? new MediaStream([track]));
    });
    peer.addEventListener("connectionstatechange", () => this.#watch(peer.connectionState));
    if (this.#microphone) {
      for (const track of this.#microphone.getAudioTracks()) {
        peer.addTrack(track, this.#microphone);
        track.addEventListener("ended", () => this.#lose("microphone", "The microphone was unplugged or switched off."));
      }
    } else {
      peer.addTransceiver("audio", { direction: "recvonly" });
    }

    const channel = peer.createDataChannel("oai-events");
    this.#channel = channel;
    const opened = new Promise((resolve, reject) => {
      channel.addEventListener("open", resolve);
      const message = "The connection could not be made. A firewall between you and the server may be in the way.";
      setTimeout(() => reject(new CallError("unreachable", message)), CONNECT_MS);
    });
    opened.catch(() => {}); // awaited below, unless something else fails first
    channel.addEventListener("message", ({ data }) => this.#emit("event", JSON.parse(data)));
    channel.addEventListener("close", () => {
      this.#location = null;
      this.#lose("closed", "The server ended the call.");
    });

    await peer.setLocalDescription();
    await gathered(peer);
    const answer = await this.#offer(peer.localDescription.sdp);
    if (this.#over) throw new CallError("ended", "The call was ended.");
    await peer.setRemoteDescription({ type: "answer", sdp: answer });
    await opened;
  }

  async #offer(sdp) {
    let response;
    try {
      const form = new FormData();
      form.append("sdp", sdp);
      const output = this.#voice ? { voice: this.#voice } : {};
      form.append("session", JSON.stringify({ type: "realtime", audio: { output } }));
      response = await fetch(CALLS, { method: "POST", headers: this.#authorization(), body: form });
    } catch {
      throw new CallError("offline", "The server can't be reached. Is it running?");
    }
    const body = await response.text();
    if (response.status === 201) {
      this.#location = response.headers.get("Location");
      return body;
    }
    throw refusal(response.status, body);
  }

  #watch(state) {
    clearTimeout(this.#lostTimer);
    const message = "The connection was lost.";
    if (state === "failed") this.#lose("lost", message);
    if (state === "disconnected") this.#lostTimer = setTimeout(() => this.#lose("lost", message), LOST_MS);
  }

  #lose(code, message) {
    this.#finish(new CallError(code, message));
  }

  #finish(error) {
    if (this.#over) return;
    this.#release();
    this.#emit("ended", error);
  }

  #release() {
    this.#over = true;
    clearTimeout(this.#lostTimer);
    for (const track of this.#microphone?.getTracks() ?? []) track.stop();
    const tells = this.#channel?.readyState === "open"; // closing it tells the server
    this.#channel?.close();
    this.#peer?.close();
    if (this.#location && !tells) {
      const path = new URL(this.#location, location.href).pathname;
      fetch(`${path}/hangup`, { method: "POST", keepalive: true, headers: this.#authorization() }).catch(() => {});
      this.#location = null;
    }
  }

  #authorization() {
    return this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
  }

  #emit(type, detail) {
    if (type === "ended" || !this.#over) this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new CallError(
      "insecure",
      "This browser gives no microphone to this page. Open it over https, or on the server's own machine as localhost.",
    );
  }
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 },
    });
  } catch (error) {
    const messages = {
      NotAllowedError: "The microphone is blocked. Allow it for this page in the browser's settings, then press Talk again.",
      NotFoundError: "No microphone was found. Plug one in, or type your message.",
      NotReadableError: "The microphone is in use by another program.",
    };
    throw new CallError("microphone", messages[error.name] ?? `The microphone can't be used: ${error.message}`);
  }
}

/** Waits until all addresses are known, but not for long: the server learns missing ones by itself. */
function gathered(peer) {
  return new Promise((resolve) => {
    const check = () => peer.iceGatheringState === "complete" && resolve();
    peer.addEventListener("icegatheringstatechange", check);
    setTimeout(resolve, GATHER_MS);
    check();
  });
}

function refusal(status, body) {
  let error = {};
  try {
    error = JSON.parse(body).error ?? {};
  } catch {
    // not from our server: a proxy, say
  }
  if (status === 401) return new CallError("key", "The server wants an access key, or does not know the one given.");
  const messages = {
    not_ready: "The server is still warming up. Try again in a moment.",
    overloaded: "All lines are busy. Try again in a little while.",
  };
  return new CallError(error.code ?? "refused", messages[error.code] ?? error.message ?? `The server answered ${status}.`);
}

// One call to the server: microphone, loudspeaker and event channel over WebRTC. Knows nothing of the page.

const CALLS = "v1/realtime/calls";
const ICE_SERVERS = "v1/realtime/ice_servers";
const CONNECT_MS = 15_000;
const GATHER_MS = 400;
const RELAY_GATHER_MS = 2_000;
const DOUBT_MS = 2_500; // how long a connection may be in doubt before another way is looked for
const AGAIN_MS = 1_000;
const REACH_MS = 5_000;
const LOST_MS = 30_000; // the server gives a silent client up then, too

const OFFLINE = "The server can't be reached. Is it running?";
const LOST = "The connection was lost.";

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
  #gatherMs = GATHER_MS;
  #restartTimer = 0;
  #doubtedSince = 0; // 0: the connection is good
  #restarting = false;
  #networkChanged = () => this.#restartSoon(0);

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
      const servers = this.#iceServers();
      servers.catch(() => {}); // awaited below, unless the microphone fails first
      if (withMicrophone) this.#microphone = await openMicrophone();
      if (this.#over) throw new CallError("ended", "The call was ended.");
      await this.#connect(await servers);
    } catch (error) {
      this.#release();
      throw error instanceof CallError ? error : new CallError("failed", `The call failed: ${error.message}`);
    }
  }

  send(event) {
    if (this.#channel?.readyState === "open") this.#channel.send(JSON.stringify(event));
  }

  /** Characters that one event may have. */
  get room() {
    return this.#peer?.sctp?.maxMessageSize ?? 0;
  }

  set muted(muted) {
    for (const track of this.#microphone?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /** Hangs up. */
  end() {
    this.#finish(null);
  }

  /** What helps to reach the server, as an RTCConfiguration. */
  async #iceServers() {
    let response;
    try {
      response = await fetch(ICE_SERVERS, { headers: this.#authorization() });
    } catch {
      throw new CallError("offline", OFFLINE);
    }
    if (response.status !== 200) throw refusal(response.status, await response.text());
    const { ice_servers: iceServers, ice_transport_policy: iceTransportPolicy } = await response.json();
    return { iceServers, iceTransportPolicy };
  }

  async #connect(configuration) {
    const peer = new RTCPeerConnection(configuration);
    this.#peer = peer;
    if (configuration.iceServers.length) this.#gatherMs = RELAY_GATHER_MS;
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
    await gathered(peer, this.#gatherMs);
    const answer = await this.#offer(peer.localDescription.sdp);
    if (this.#over) throw new CallError("ended", "The call was ended.");
    await peer.setRemoteDescription({ type: "answer", sdp: answer });
    await opened;
    addEventListener("online", this.#networkChanged);
    navigator.connection?.addEventListener("change", this.#networkChanged);
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
      throw new CallError("offline", OFFLINE);
    }
    const body = await response.text();
    if (response.status === 201) {
      this.#location = response.headers.get("Location");
      return body;
    }
    throw refusal(response.status, body);
  }

  #watch(state) {
    if (state === "connected") {
      clearTimeout(this.#restartTimer);
      this.#restartTimer = this.#doubtedSince = 0;
    }
    if (state === "failed") this.#restartSoon(0);
    if (state === "disconnected") this.#restartSoon(DOUBT_MS);
  }

  /** Looks for another way to the server (an ICE restart) in `wait` ms, unless the connection is good again by then. */
  #restartSoon(wait) {
    if (this.#over || !this.#location) return;
    clearTimeout(this.#restartTimer);
    this.#doubtedSince ||= performance.now();
    this.#restartTimer = setTimeout(() => this.#restart(), wait);
  }

  async #restart() {
    if (this.#over || this.#restarting) return;
    this.#restarting = true;
    const peer = this.#peer;
    try {
      peer.restartIce();
      await peer.setLocalDescription(await peer.createOffer());
      await gathered(peer, this.#gatherMs);
      const sdp = peer.localDescription.sdp;
      const headers = { ...this.#authorization(), "Content-Type": "application/sdp" };
      const response = await fetch(this.#callPath(), { method: "POST", headers, body: sdp, signal: AbortSignal.timeout(REACH_MS) });
      if (this.#over) return;
      if (response.status === 404) return this.#lose("lost", LOST);
      if (response.status !== 200) throw new Error(`the server answered ${response.status}`);
      await peer.setRemoteDescription({ type: "answer", sdp: await response.text() });
    } catch {
      if (this.#over) return;
      if (peer.signalingState === "have-local-offer") await peer.setLocalDescription({ type: "rollback" });
    } finally {
      this.#restarting = false;
    }
    if (this.#over || !this.#doubtedSince) return;
    if (performance.now() - this.#doubtedSince > LOST_MS) this.#lose("lost", LOST);
    else if (peer.connectionState === "connected") this.#doubtedSince = 0;
    else this.#restartSoon(peer.connectionState === "connecting" ? 3 * AGAIN_MS : AGAIN_MS);
  }

  #callPath() {
    return new URL(this.#location, location.href).pathname;
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
    clearTimeout(this.#restartTimer);
    removeEventListener("online", this.#networkChanged);
    navigator.connection?.removeEventListener("change", this.#networkChanged);
    for (const track of this.#microphone?.getTracks() ?? []) track.stop();
    const tells = this.#channel?.readyState === "open"; // closing it tells the server
    this.#channel?.close();
    this.#peer?.close();
    if (this.#location && !tells) {
      fetch(`${this.#callPath()}/hangup`, { method: "POST", keepalive: true, headers: this.#authorization() }).catch(() => {});
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
function gathered(peer, milliseconds) {
  return new Promise((resolve) => {
    const check = () => peer.iceGatheringState === "complete" && resolve();
    peer.addEventListener("icegatheringstatechange", check);
    setTimeout(resolve, milliseconds);
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
    rate_limit_exceeded: "All lines are busy. Try again in a little while.",
    draining: "The server is going down. Try again in a little while.",
  };
  return new CallError(error.code ?? "refused", messages[error.code] ?? error.message ?? `The server answered ${status}.`);
}

// npm @openai/agents-realtime over WebSocket: three spoken turns, the second answer is interrupted.
// node agents.cjs FOLDER_OF_NODE_MODULES URL TURN.pcm INTERRUPTION.pcm    (pcm16, 24 kHz); prints one JSON object.
const { createRequire } = require("node:module");
const { readFileSync } = require("node:fs");

const [folder, url, turn, interruption] = process.argv.slice(2);
const { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } = createRequire(`${folder}/`)("@openai/agents-realtime");

const read = (path) => {
  const data = readFileSync(path);
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
};

const session = new RealtimeSession(new RealtimeAgent({ name: "Anna", instructions: "Be brief." }), {
  transport: new OpenAIRealtimeWebSocket({ url }),
});
const seen = { errors: [], interrupted: 0, bytes: 0, truncated: [] };
session.on("error", (error) => seen.errors.push(error));
session.on("audio_interrupted", () => (seen.interrupted += 1));
session.on("audio", ({ data }) => (seen.bytes += data.byteLength));
session.on("transport_event", (event) => {
  if (event.type === "conversation.item.truncated") seen.truncated.push(event.audio_end_ms);
});

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const until = (emitter, kind) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${kind}; ${JSON.stringify(seen)}`)), 20_000);
    emitter.once(kind, (value) => {
      clearTimeout(timer);
      resolve(value);
    });
  });

const history = () =>
  session.history.map((item) => ({
    role: item.role,
    text: (item.content ?? []).map((part) => part.transcript ?? part.text ?? "").join(" "),
  }));

async function main() {
  await session.connect({ apiKey: "none" });
  session.sendAudio(read(turn));
  await until(session, "agent_end");
  seen.first = seen.bytes;
  await sleep(1000); // it is being played; to speak sooner is to interrupt

  session.sendAudio(read(turn));
  await until(session, "audio");
  await sleep(400);
  const interrupted = until(session, "audio_interrupted");
  session.sendAudio(read(interruption));
  await interrupted;
  session.sendAudio(new ArrayBuffer(80_000));
  for (let waited = 0; !history().at(-1)?.text.includes("three."); waited += 20) {
    if (waited > 20_000) throw new Error(`no third answer; ${JSON.stringify([seen, history()])}`);
    await sleep(20);
  }
  seen.history = history();
  session.close();
  console.log(JSON.stringify(seen));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);

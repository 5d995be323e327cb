// npm @openai/agents-realtime over WebSocket. Its microphone and its loudspeaker are this process's standard input and
// output: one JSON object a line.   node agents.cjs FOLDER_OF_NODE_MODULES URL INSTRUCTIONS
//   in:   {sound: base64 of pcm16 at 24 kHz} | {retrieve: id of an item} | {end: true}
//   out:  {event: name, …}; at the end {event: "history", items: [[role, text], …]}
const { createRequire } = require("node:module");
const readline = require("node:readline");

const [folder, url, instructions] = process.argv.slice(2);
const { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } = createRequire(`${folder}/`)("@openai/agents-realtime");

const tell = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);

const session = new RealtimeSession(new RealtimeAgent({ name: "Anna", instructions }), {
  transport: new OpenAIRealtimeWebSocket({ url }),
});
session.on("error", (error) => tell("error", { error }));
session.on("agent_start", () => tell("agent_start"));
session.on("agent_end", () => tell("agent_end"));
session.on("audio_interrupted", () => tell("audio_interrupted"));
session.on("audio", ({ data }) => tell("audio", { data: Buffer.from(data).toString("base64") }));
session.on("transport_event", (event) => {
  if (event.type.startsWith("conversation.item.") || event.type === "response.output_audio_transcript.delta") {
    tell("transport_event", { server: event });
  }
});

const history = () =>
  session.history.map((item) => [
    item.role,
    (item.content ?? []).map((part) => part.transcript ?? part.text ?? "").join(" "),
  ]);

function obey({ sound, retrieve, end }) {
  if (sound) {
    const data = Buffer.from(sound, "base64");
    session.sendAudio(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength));
  } else if (retrieve) {
    session.transport.sendEvent({ type: "conversation.item.retrieve", item_id: retrieve });
  } else if (end) {
    tell("history", { items: history() });
    session.close();
    process.exitCode = 0;
    process.stdin.destroy();
  }
}

session.connect({ apiKey: "none" }).then(
  () => readline.createInterface({ input: process.stdin }).on("line", (line) => obey(JSON.parse(line))),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);

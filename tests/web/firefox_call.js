// Two calls of Firefox, one as it is by itself and one with everything in one bundle: what was offered, heard and told.
(async () => {
  const until = async (condition, what) => {
    for (const begun = performance.now(); !(await condition()); ) {
      if (performance.now() - begun > 40000) throw new Error(`not within 40 s: ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };
  const call = async (bundlePolicy) => {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const peer = new RTCPeerConnection({ bundlePolicy });
    peer.ontrack = ({ streams }) => Object.assign(new Audio(), { srcObject: streams[0] }).play();
    peer.addTrack(stream.getAudioTracks()[0], stream);
    const channel = peer.createDataChannel("oai-events");
    const events = [];
    channel.onmessage = ({ data }) => events.push(JSON.parse(data));
    await peer.setLocalDescription(await peer.createOffer());
    await until(() => peer.iceGatheringState === "complete", "addresses");
    const offer = peer.localDescription.sdp;
    const answer = await fetch("/v1/realtime/calls", {
      method: "POST",
      headers: { "Content-Type": "application/sdp" },
      body: offer,
    });
    if (answer.status !== 201) throw new Error(`${answer.status} ${await answer.text()}`);
    await peer.setRemoteDescription({ type: "answer", sdp: await answer.text() });
    await until(() => channel.readyState === "open", `the channel (${peer.connectionState})`);
    const tell = (event) => channel.send(JSON.stringify(event));
    tell({ type: "session.update", session: { type: "realtime", audio: { input: { turn_detection: null } } } });
    const content = [{ type: "input_text", text: "hello" }];
    tell({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
    tell({ type: "response.create" });
    await until(() => events.some(({ type }) => type === "output_audio_buffer.stopped"), "the reply");
    const stats = [...(await peer.getStats()).values()];
    const heard = stats.find(({ type, kind }) => type === "inbound-rtp" && kind === "audio");
    const told = stats.find(({ type, kind }) => type === "remote-inbound-rtp" && kind === "audio");
    const said = stats.find(({ type, kind }) => type === "outbound-rtp" && kind === "audio");
    peer.close();
    stream.getTracks().forEach((track) => track.stop());
    return { offer, kinds: [...new Set(events.map(({ type }) => type))], heard, said, told };
  };
  return JSON.stringify([await call("balanced"), await call("max-bundle")]);
})();

"""Calls that come about by offers as other stacks write them: aiortc speaks, its offers are rewritten on their way."""

from __future__ import annotations

import re
import socket

import aiortc.codecs
import numpy as np
import pytest
from aiortc import RTCCertificate, RTCSessionDescription
from aiortc.rtcdtlstransport import generate_certificate
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cascade_double import DoubleCascade
from tests.faces.test_webrtc import Server, serve  # noqa: F401
from tests.faces.test_webrtc_network import until
from tests.rtc_client import Client
from tests.speech import rms, silence, voice


async def call(server: Server, client: Client, change, restore=lambda answer: answer) -> str:
    """Offer what ``change`` makes of the client's offer; the answer."""
    connection = client.connection
    await connection.setLocalDescription(await connection.createOffer())
    offer = change(connection.localDescription.sdp)
    headers = {"Content-Type": "application/sdp"}
    async with server.http.post(f"{server.base}/v1/realtime/calls", data=offer, headers=headers) as response:
        answer = await response.text()
        assert response.status == 201, answer
    await connection.setRemoteDescription(RTCSessionDescription(sdp=restore(answer), type="answer"))
    return answer


async def test_a_data_section_that_is_only_in_the_bundle(serve):  # noqa: F811
    """Firefox with ``max-bundle``: port 0, and no transport of its own."""
    server = await serve()
    client = server.client()

    def change(offer: str) -> str:
        audio, data = offer.split("m=application ")
        data = re.sub(r"^\d+", "0", data)
        kept = [line for line in data.splitlines() if not re.match("a=(ice|fingerprint|setup|candidate|end)", line)]
        return audio + "\r\n".join(["m=application " + kept[0], "a=bundle-only", *kept[1:]]) + "\r\n"

    await call(server, client, change)
    await client.wait_for("session.created")


async def test_a_telephone_gateway_is_heard_and_answered_in_pcmu(serve):  # noqa: F811
    """No Opus, no data, no bundle and no mid."""
    server = await serve(DoubleCascade(transcripts=["hello there"]))
    client = server.client()
    client.connection._RTCPeerConnection__sctp = None
    (transceiver,) = client.connection.getTransceivers()
    codecs = aiortc.codecs.get_capabilities("audio").codecs
    transceiver.setCodecPreferences([codec for codec in codecs if codec.name == "PCMU"])

    def change(offer: str) -> str:
        assert "m=application" not in offer
        return re.sub("a=(group:BUNDLE|mid:|extmap).*\r\n", "", offer)

    def restore(answer: str) -> str:
        assert "PCMU/8000" in answer and "BUNDLE" not in answer and "mid" not in answer
        return answer.replace("t=0 0\r\n", "t=0 0\r\na=group:BUNDLE 0\r\n").replace(
            "a=rtcp-mux", "a=mid:0\r\na=rtcp-mux"
        )

    await call(server, client, change, restore)
    client.microphone.say(np.concatenate([silence(1.0, 48_000), voice(0.8, 48_000)]))
    await until(lambda: any(rms(samples) > 0.03 for _, samples in client.heard), 30)
    question = max(server.cascade.heard, key=len)  # on a busy machine it may come in pieces
    assert rms(question) > 0.02


class RsaCertificate(RTCCertificate):
    """Of a client that has an RSA key."""

    def _create_ssl_context(self, srtp_profiles):
        context = super()._create_ssl_context(srtp_profiles)
        context.set_cipher_list(b"ECDHE-RSA-AES128-GCM-SHA256")
        return context


@pytest.mark.parametrize("setup", ["actpass", "passive"])
async def test_a_client_with_an_rsa_certificate(serve, setup):  # noqa: F811
    server = await serve()
    client = server.client()
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    for transport in client.connection._RTCPeerConnection__dtlsTransports:
        transport._RTCDtlsTransport__local_certificate = RsaCertificate(key, generate_certificate(key))
    answer = await call(server, client, lambda offer: offer.replace("setup:actpass", f"setup:{setup}"))
    assert "a=setup:active" in answer
    await client.wait_for("session.created")


async def test_many_calls_over_one_port(serve):  # noqa: F811
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    server = await serve(ports=(port, port))
    clients = [await server.client().connect() for _ in range(3)]
    for client in clients:
        assert set(re.findall(r" (\d+) typ host", client.answer)) == {str(port)}
    ids = {(await client.wait_for("session.created"))["session"]["id"] for client in clients}
    assert len(ids) == 3
    clients[0].channel.close()
    clients[1].ask("hello")
    await clients[1].wait_for("output_audio_buffer.stopped")


async def test_ports_of_a_range(serve):  # noqa: F811
    server = await serve(ports=(45_310, 45_312))
    client = await server.client().connect()
    assert {int(text) for text in re.findall(r" (\d+) typ host", client.answer)} <= {45_310, 45_311, 45_312}

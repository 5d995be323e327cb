"""Signed metadata: written and read by the C2PA project's library, and its sound left as it was."""

from __future__ import annotations

import io
import json
from pathlib import Path

import av
import c2pa
import msgspec
import numpy as np
import pytest

from tests.certificates import ORGANIZATION, Papers, papers
from voicechat.contract.provenance import Credential
from voicechat.media.encode import encode
from voicechat.watermark.manifest import (
    ALGORITHM,
    MIME_TYPES,
    SOURCE_TYPE,
    Signer,
    SigningError,
    _claims,
    credential_of,
    read_credential,
)

FORMATS = [fmt for fmt in MIME_TYPES if fmt != "m4a"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def signer(made: Papers) -> Signer:
    return Signer.load(made.certificate, made.private_key, "es256", model="embedded", payload=0x2F3A)


def sound() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 2000, 24_000).astype(np.int16)


def m4a(pcm: np.ndarray) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=24_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm.astype(np.float32)[None] / 32768, "fltp", "mono")
        frame.sample_rate = 24_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()


def file_of(fmt: str) -> bytes:
    return m4a(sound()) if fmt == "m4a" else encode(sound(), fmt)


def decoded(data: bytes) -> bytes:
    with av.open(io.BytesIO(data)) as container:
        return b"".join(frame.to_ndarray().tobytes() for frame in container.decode(audio=0))


@pytest.mark.parametrize("fmt", MIME_TYPES)
def test_a_signed_file_says_who_made_it_and_how(signer: Signer, made: Papers, tmp_path: Path, fmt: str) -> None:
    plain = file_of(fmt)
    signed = signer.sign(plain, fmt)
    assert decoded(signed) == decoded(plain), "the sound is what it was"
    path = tmp_path / f"signed.{fmt}"
    path.write_bytes(signed)

    manifest = c2pa.Reader(MIME_TYPES[fmt], io.BytesIO(signed)).get_active_manifest()
    assert manifest["claim_generator_info"][0]["name"] == "voicechat"
    assertions = {assertion["label"]: assertion["data"] for assertion in manifest["assertions"]}
    created, bound = assertions["c2pa.actions.v2"]["actions"]
    assert (created["action"], created["digitalSourceType"]) == ("c2pa.created", SOURCE_TYPE)
    assert bound["action"] == "c2pa.watermarked.bound"
    assert assertions["c2pa.soft-binding"]["blocks"][0]["value"] == "2f3a"

    found = read_credential(path)
    assert (found.state, found.issuer, found.model) == ("valid", ORGANIZATION, "embedded")
    assert found.generated and found.watermark == 0x2F3A and found.generated_at is not None
    assert read_credential(path, made.authority.read_text()).state == "trusted"


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_file_that_was_changed_is_invalid(signer: Signer, tmp_path: Path, fmt: str) -> None:
    signed = bytearray(signer.sign(file_of(fmt), fmt))
    signed[-3000] ^= 0xFF
    path = tmp_path / "changed"
    path.write_bytes(signed)
    assert read_credential(path).state == "invalid"


@pytest.mark.parametrize("data", [encode(sound(), "wav"), encode(sound(), "opus"), b"no sound at all", b""])
def test_a_file_without_a_manifest(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert read_credential(path).state == "not_present"


def test_a_manifest_of_the_first_version_names_its_maker_by_a_text(signer: Signer, tmp_path: Path) -> None:
    """C2PA 1.x, ``c2pa.actions``: a softwareAgent is a text, not an object."""
    created = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE, "softwareAgent": "Another Maker 1.0"}
    claims = {
        "claim_generator_info": [{"name": "another"}],
        "assertions": [{"label": "c2pa.actions", "data": {"actions": [created]}}],
    }
    signed = io.BytesIO()
    with signer._native() as native, c2pa.Builder(json.dumps(claims)) as builder:
        builder.sign(native, "audio/wav", io.BytesIO(file_of("wav")), signed)
    path = tmp_path / "first.wav"
    path.write_bytes(signed.getvalue())
    found = read_credential(path)
    assert (found.model, found.generated, found.watermark) == ("Another Maker 1.0", True, None)


def binding(**data: object) -> dict[str, object]:
    return {"label": "c2pa.soft-binding", "data": {"alg": ALGORITHM, **data}}


@pytest.mark.parametrize(
    "value", ["1" + "0" * 40, "10000", "-1", "0x2f", "2_f", " 2f", "", None, 47, ["2f"], {"value": "2f"}]
)
def test_a_payload_is_sixteen_bits(value: object) -> None:
    blocks = [None, "2f", {}, {"value": value}]
    found = credential_of({"assertions": [binding(blocks=blocks)]})
    assert found.watermark is None and msgspec.json.encode(found)
    assert credential_of({"assertions": [binding(blocks=[*blocks, {"value": "FFFF"}])]}).watermark == 0xFFFF


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        [],
        {"assertions": None, "signature_info": None},
        {"assertions": [None, "text", {}, {"label": None}], "signature_info": "text"},
        {"assertions": [{"label": "c2pa.actions"}, {"label": "c2pa.actions.v2", "data": "text"}]},
        {"assertions": [{"label": "c2pa.actions", "data": {"actions": None}}]},
        {"assertions": [{"label": "c2pa.actions", "data": {"actions": [None, "c2pa.created"]}}]},
        {"assertions": [binding(blocks=None), binding(blocks="text"), {"label": "c2pa.soft-binding", "data": []}]},
    ],
)
def test_what_a_stranger_claims_may_have_any_shape(manifest: object) -> None:
    assert credential_of(manifest) == Credential(state="invalid")
    created = {"action": "c2pa.created", "softwareAgent": 7, "when": {}, "digitalSourceType": [SOURCE_TYPE]}
    odd = {"assertions": [{"label": "c2pa.actions", "data": {"actions": [created]}}], "signature_info": {"issuer": 7}}
    assert credential_of(odd) == Credential(state="invalid")


def test_a_manifest_elsewhere_is_not_fetched(signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may name an address at which its manifest is; whoever sends such files would have us go there."""
    import http.server
    import threading

    asked: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out = io.BytesIO()
        with signer._native() as native, c2pa.Builder(json.dumps(_claims("jpg", "m", None))) as builder:
            builder.set_no_embed()
            builder.set_remote_url(f"http://127.0.0.1:{server.server_port}/manifest.c2pa")
            builder.sign(native, "image/jpeg", io.BytesIO(_jpeg()), out)
        path = tmp_path / "elsewhere.jpg"
        path.write_bytes(out.getvalue())
        assert b"manifest.c2pa" in out.getvalue()
        assert read_credential(path).state in ("not_present", "invalid")
        server.shutdown()
    assert asked == []


def _jpeg() -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format="image2pipe") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), "rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()


def test_papers_that_can_not_sign_are_told_at_start(made: Papers, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(SigningError, match=r"broken\.pem"):
        Signer.load(broken, made.private_key, "es256", model="m", payload=None)
    with pytest.raises(OSError):
        Signer.load(tmp_path / "none.pem", made.private_key, "es256", model="m", payload=None)
    assert "PRIVATE" not in repr(Signer.load(made.certificate, made.private_key, "es256", model="m", payload=None))

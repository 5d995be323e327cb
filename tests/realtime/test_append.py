"""Sound that clients append is read in one go, and exactly as if it were read with care."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voicechat.realtime import client_events
from voicechat.realtime.client_events import AudioAppend, parse_event

KIND = "input_audio_buffer.append"


def carefully(text: str | bytes) -> client_events.ClientEvent:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_events, "_SHORT", -1)
        return parse_event(text)


def check(text: str | bytes) -> None:
    event, expected = parse_event(text), carefully(text)
    assert (event.id, event.body) == (expected.id, expected.body)
    assert (event.error is None) == (expected.error is None)
    if event.error is not None and expected.error is not None:
        assert vars(event.error) == vars(expected.error)


@st.composite
def nearly_base64(draw: st.DrawFn) -> str:
    text = base64.b64encode(draw(st.binary(max_size=12))).decode()
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(st.text('AB01+/=-_ \n"\\é', max_size=2)) + text[place + draw(st.integers(0, 2)) :]


@given(nearly_base64(), st.booleans(), st.booleans())
@example("QR==", False, False)
@example("QUI", False, False)
@example("Q/+A", True, False)
@example("", False, False)
def test_any_sound(audio: str, escaped: bool, as_bytes: bool) -> None:
    text = json.dumps({"type": KIND, "audio": audio}, ensure_ascii=False)
    text = text.replace("/", "\\/") if escaped else text
    check(text.encode() if as_bytes else text)


@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from([KIND, "input_audio_buffer.commit", 1])},
        optional={
            "audio": st.sampled_from(["AAAA", "", None, 3, ["AAAA"]]),
            "event_id": st.one_of(st.none(), st.integers(), st.text(st.characters()), st.just("e" * 513)),
            "more": st.integers(),
        },
    ),
    st.booleans(),
)
def test_any_fields(value: dict[str, object], ascii_only: bool) -> None:
    check(json.dumps(value, ensure_ascii=ascii_only))


@pytest.mark.parametrize(
    "text",
    [
        f'{{"type":"{KIND}","audio":"AAAA","audio":"BBBB"}}',
        f'{{"type":"{KIND}","audio":"AA","audio":"BBBB"}}',
        f'{{"type":"session.update","type":"{KIND}","audio":"BBBB"}}',
        f'{{"type":"{KIND}","audio":"AAAA","event_id":"\\ud83d\\ude00"}}',
        f'{{"type":"{KIND}","audio":"AAAA","event_id":"\\ud83d"}}',
        f'{{"type":"{KIND}","audio":"\\u0041AAA"}}',
        f' \n{{"type": "{KIND}" ,\t"audio":"AAAA"}} \r',
        f'{{"type":"{KIND}","audio":"AAAA"}}x',
        f'\ufeff{{"type":"{KIND}","audio":"AAAA"}}',
        b'{"type":"input_audio_buffer.append","audio":"AAAA","event_id":"\xff"}',
        '{"type":' * 5000,
    ],
)
def test_odd_json(text: str | bytes) -> None:
    check(text)


def test_the_usual_one() -> None:
    event = parse_event(f'{{"event_id":"mine","type":"{KIND}","audio":"AAEC"}}')
    assert (event.id, event.body, event.error) == ("mine", AudioAppend(b"\x00\x01\x02"), None)

"""Events as the WebSocket carries them."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from voicechat.faces.realtime_ws import _json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_read_is_what_was_sent(event: dict[str, object]) -> None:
    sent = _json(event).decode()
    found = json.loads(sent)
    assert found == event
    assert list(found) == list(event), "in the same order"


def test_sound_is_base64() -> None:
    for size in range(7):
        sound = bytes(range(250, 250 + min(size, 6))) if size < 6 else b"\xff" * 9000
        assert base64.b64decode(json.loads(_json({"delta": sound}))["delta"], validate=True) == sound


def test_nothing_is_in_it_that_need_not_be() -> None:
    assert _json({"type": "x", "text": "é\u2028\n", "n": [1, 2.5, None, True]}) == (
        '{"type":"x","text":"é\u2028\\n","n":[1,2.5,null,true]}'.encode()
    )


def test_numbers_of_any_length() -> None:
    event = {"type": "session.updated", "limit": 10**100, "low": -(2**63) - 1, "high": 2**64}
    assert json.loads(_json(event)) == event

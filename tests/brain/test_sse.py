"""The event stream parser, against the WHATWG's rules and examples, whatever way the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.brain import sse
from voicechat.brain.sse import SseEvent, SseParser

EXAMPLES: list[tuple[str, list[SseEvent]]] = [
    ("data: YHOO\ndata: +2\ndata: 10\n\n", [SseEvent("", "YHOO\n+2\n10")]),
    (": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n", [
        SseEvent("", "first event"), SseEvent("", "second event"),
    ]),
    ("data\n\ndata\ndata\n\n", [SseEvent("", ""), SseEvent("", "\n")]),
    ("data:test\n\ndata: test\n\n", [SseEvent("", "test"), SseEvent("", "test")]),
    ("data:  two blanks\n\n", [SseEvent("", " two blanks")]),
    ("event: error\ndata: {}\n\n", [SseEvent("error", "{}")]),
    ("event: nothing\n\ndata: x\n\n", [SseEvent("", "x")]),
    ("retry: 10\nunknown: y\ndata: x\n\n: ping\n\n", [SseEvent("", "x")]),
    ("\ufeffdata: after a mark\n\n", [SseEvent("", "after a mark")]),
    ("data: a\u2028b é 🎈\n\n", [SseEvent("", "a\u2028b é 🎈")]),
]  # fmt: skip


def events(data: bytes, cuts: list[int]) -> list[SseEvent]:
    parser, found, at = SseParser(), [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        found += parser.feed(data[at:cut])
        at = cut
    return found + parser.finish()


@given(
    st.lists(st.sampled_from(EXAMPLES), max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=30),
)
def test_any_cut_and_any_line_end(chosen: list[tuple[str, list[SseEvent]]], end: str, cuts: list[int]) -> None:
    chosen = [example for index, example in enumerate(chosen) if index == 0 or not example[0].startswith("\ufeff")]
    text = "".join(stream for stream, _ in chosen).replace("\n", end)
    assert events(text.encode(), cuts) == [event for _, wanted in chosen for event in wanted]


def test_byte_by_byte() -> None:
    for text, wanted in EXAMPLES:
        data = text.replace("\n", "\r\n").encode()
        assert events(data, list(range(len(data)))) == wanted


@pytest.mark.parametrize("end", ["", "\n", "\r"])
def test_the_last_event_may_lack_its_empty_line(end: str) -> None:
    assert events(f"data: [DONE]{end}".encode(), []) == [SseEvent("", "[DONE]")]


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == [SseEvent("", "x")]
    assert parser.feed(b": keep-alive\n\n") == []
    assert parser.finish() == []


def test_what_is_no_stream_of_events() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        SseParser().feed(b"data: \xff\n\n")
    with pytest.raises(ValueError, match="unexpected end of data"):
        events("data: é".encode()[:-1], [])


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    for line in (b"data: 12345678\n", b"x"):
        parser = SseParser()
        with pytest.raises(ValueError, match="more than 100"):
            for _ in range(200):
                parser.feed(line)

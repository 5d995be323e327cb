"""Messages over a real socket pair: every kind, in any pieces, of any size, and the end of the line."""

from __future__ import annotations

import asyncio
import socket
import types
import typing
from collections.abc import AsyncIterator

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract import messages
from voicechat.contract.channel import Channel
from voicechat.contract.messages import Codes, Message, Ready, Released, Shutdown, Text, Turn

KINDS = sorted(set(typing.get_args(Message)), key=lambda kind: kind.__name__)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
PLAIN = {
    int: INTEGERS,
    float: st.floats(allow_nan=False),
    str: st.text(),
    bytes: st.binary(),
    bool: st.booleans(),
    type(None): st.none(),
}
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
"""What a tool's schema may hold; the only field without a type of its own."""


def values(kind: object) -> st.SearchStrategy:
    """Any value of a field's type."""
    if kind is typing.Any:
        return JSON
    if isinstance(kind, type) and kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if typing.get_origin(kind) is tuple:
        return st.lists(values(arguments[0]), max_size=5).map(tuple)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(arguments)
    raise TypeError(f"no values of {kind}")


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in msgspec.structs.fields(kind)})


def all_of(kinds: list) -> st.SearchStrategy:
    return st.one_of([structs(kind) for kind in kinds])


async def pair() -> tuple[Channel, Channel]:
    one, two = socket.socketpair()
    return await Channel.open(one), await Channel.open(two)


async def take(channel: Channel, count: int) -> list[Message]:
    taken: list[Message] = []
    if count:
        async for message in channel:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


@pytest.fixture
async def line() -> AsyncIterator[tuple[Channel, Channel]]:
    one, two = await pair()
    yield one, two
    one.close()
    two.close()


def test_there_is_a_message_of_every_kind() -> None:
    declared = {
        value
        for value in vars(messages).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__struct_config__.tag
    }
    assert {kind for kind in declared if not kind.__name__.startswith("_")} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_round_trip_of_every_kind(kind: type, data: st.DataObject) -> None:
    sent = data.draw(structs(kind))

    async def body() -> None:
        one, two = await pair()
        one.send(sent)
        assert await take(two, 1) == [sent]
        two.send(sent)
        assert await take(one, 1) == [sent]
        one.close()
        two.close()

    asyncio.run(body())


@settings(max_examples=40, deadline=None)
@given(sent=st.lists(all_of(KINDS), max_size=12), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_any_cut_of_the_stream(sent: list[Message], sizes: list[int]) -> None:
    """The bytes come in pieces of any length, as a busy kernel may hand them over."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        (near, relay_in), (relay_out, far) = socket.socketpair(), socket.socketpair()
        relay_in.setblocking(False)
        relay_out.setblocking(False)
        sender, receiver = await Channel.open(near), await Channel.open(far)

        async def relay() -> None:
            turn = 0
            while data := await loop.sock_recv(relay_in, sizes[turn % len(sizes)]):
                await loop.sock_sendall(relay_out, data)
                await asyncio.sleep(0)
                turn += 1
            relay_out.close()

        relaying = asyncio.create_task(relay())
        for message in sent:
            sender.send(message)
        sender.close()
        assert [message async for message in receiver] == sent
        await relaying
        relay_in.close()
        receiver.close()

    asyncio.run(body())


async def test_big_messages(line: tuple[Channel, Channel]) -> None:
    """Far more than a socket's buffer, both ways at once, without a wait of the sender."""
    one, two = line
    codes = Codes(1, bytes(range(180)) * 200_000, (0.5,) * 1000)
    text = Text(2, ("x" * 6_000_000, "é" * 100), True, 3)
    one.send(codes)
    one.send(text)
    two.send(text)
    assert await take(two, 2) == [codes, text]
    assert await take(one, 1) == [text]


async def test_order_is_kept(line: tuple[Channel, Channel]) -> None:
    one, two = line
    for number in range(2000):
        one.send(Released(number, number))
    assert [message.id for message in await take(two, 2000)] == list(range(2000))


async def test_what_was_sent_before_the_close_arrives(line: tuple[Channel, Channel]) -> None:
    one, two = line
    one.send(Ready({"seconds": 1.5, "voices": "a"}))
    one.send(Shutdown())
    one.close()
    assert [message async for message in two] == [Ready({"seconds": 1.5, "voices": "a"}), Shutdown()]


async def test_an_end_in_the_middle_of_a_message() -> None:
    """A stage that is killed while it writes: the reader gets the whole messages and then the end."""
    near, far = socket.socketpair()
    between, other = socket.socketpair()
    sender = await Channel.open(near)
    sender.send(Released(1, 2))
    sender.send(Released(3, 4))
    await asyncio.sleep(0.01)
    data = far.recv(1000)
    between.sendall(data[:-1])
    between.close()
    receiver = await Channel.open(other)
    assert [message async for message in receiver] == [Released(1, 2)]
    sender.close()
    receiver.close()
    far.close()


def test_the_servers_own_event_loop() -> None:
    async def body() -> None:
        one, two = await pair()
        one.send(Released(1, 2))
        two.send(Shutdown())
        assert await asyncio.wait_for(take(two, 1), 30) == [Released(1, 2)]
        assert await asyncio.wait_for(take(one, 1), 30) == [Shutdown()]
        one.close()
        assert await asyncio.wait_for(take(two, 1), 30) == []
        two.close()

    uvloop.run(body())


async def test_sending_to_nobody_is_harmless() -> None:
    one, two = await pair()
    two.close()
    for number in range(1000):
        one.send(Text(number, ("x" * 1000,), False, 0))
        await asyncio.sleep(0)
    assert [message async for message in one] == []
    one.close()
    one.send(Shutdown())


def test_turns_keep_their_fields() -> None:
    turn = Turn("user", "Hello")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(turn), type=Turn) == turn

"""What each client event does to a session. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from voicechat.realtime import client_events as ce
from voicechat.realtime.errors import ClientError
from voicechat.realtime.fields import Fields, wrong_type
from voicechat.realtime.items import MAX_ID, Item, Part, parse_item
from voicechat.realtime.outbox import EncodedClip
from voicechat.realtime.recognition import Waiting
from voicechat.realtime.response import Times
from voicechat.realtime.settings import MAX_INPUT_ITEMS

if TYPE_CHECKING:
    from voicechat.realtime.session import Session


_WRITTEN = (ce.SessionUpdate, ce.AudioAppend, ce.AudioCommit, ce.AudioClear, ce.ItemDelete, ce.ItemRetrieve)
"""What a session obeys that only writes down what is said."""


class Commands:
    """Obeys client events; :class:`ClientError` says why one can't be obeyed, and then nothing has changed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def obey(self, body: ce.Body) -> None:
        """Do what ``body`` asks for."""
        session = self._session
        if session.config.kind == "transcription" and not isinstance(body, _WRITTEN):
            message = "A transcription session makes no responses and takes no items; it only hears."
            raise ClientError(message, code="unsupported_event", param="type")
        match body:
            case ce.SessionUpdate():
                self._update(body)
            case ce.AudioAppend():
                raise ClientError("Sound can't be sent this way here.", code="unsupported_event", param="type")
            case ce.AudioCommit():
                session.perform(session.input.commit())
            case ce.AudioClear():
                effects = session.input.clear()
                session.perform(effects)
                if not effects:
                    session.out.send("input_audio_buffer.cleared")
            case ce.OutputClear():
                self._clear_output()
            case ce.ItemCreate():
                self._create_item(body)
            case ce.ItemDelete(item_id):
                session.asr.drop_item(session.conversation.delete(item_id))
                session.proceed()
            case ce.ItemRetrieve(item_id):
                session.conversation.retrieve(item_id)
            case ce.ItemTruncate():
                self._truncate(body)
            case ce.ResponseCreate(response):
                self._respond(response)
            case ce.ResponseCancel(response_id):
                self._cancel(response_id)

    def _update(self, body: ce.SessionUpdate) -> None:
        session = self._session
        before = session.config.detection
        session.config = session.config.updated(
            body.session,
            session.model,
            voice_locked=session.replies.spoke,
        )
        effects = session.input.configure(session.config.detection) if session.config.detection != before else []
        session.out.send("session.updated", session=session.to_dict())
        session.perform(effects)

    def _clear_output(self) -> None:
        session = self._session
        if not session.limits.server_plays:
            message = "The client plays the sound on this transport: there is nothing to clear on the server."
            raise ClientError(message, code="unsupported_event", param="type")
        session.replies.interrupt("client_cancelled")
        session.reply_if_owed()

    def _create_item(self, body: ce.ItemCreate) -> None:
        session = self._session
        item = parse_item(body.item, session.config.input_format, sees=session.model.sees)
        if item.type == "function_call" and not item.call_id:
            item.call_id = session.out.new_id("call")
        _check_call(item, session.conversation.items)
        session.conversation.insert(item, body.previous)
        self._hear(item)

    def _hear(self, item: Item) -> None:
        """Find the text of an item's sounds, where the client gave none."""
        for index, part in enumerate(item.parts):
            if part.type == "input_audio" and part.text is None:
                (sound,) = part.sounds
                self._session.asr.hear_also(Waiting(item, index, _seconds(part)), sound)

    def _truncate(self, body: ce.ItemTruncate) -> None:
        session = self._session
        if session.was_taken_back(body.item_id):  # its client has heard that the user goes on, and stops its player
            session.playback.client_truncated()
            return
        item, _ = session.conversation.check_truncation(body.item_id, body.content_index, body.audio_end_ms)
        if item.status == "in_progress":  # the client has stopped to listen
            session.replies.cancel("client_cancelled")
        session.conversation.truncate(body.item_id, body.content_index, body.audio_end_ms)
        session.playback.client_truncated()
        session.replies.stopped_at(item)
        session.reply_if_owed()

    def _respond(self, response: object) -> None:
        session = self._session
        spec = session.spec(response)
        if session.replies.live is not None:
            message = "Conversation already has an active response in progress. Wait until it is done, or cancel it."
            raise ClientError(message, code="conversation_already_has_active_response")
        inputs = None if spec.input is None else self._inputs(spec.input)
        given = session.conversation.messages(spec.instructions) if inputs is None else inputs
        if not given and not spec.instructions.strip() and not session.asr.pending:
            raise ClientError("There is nothing to reply to.", code="conversation_empty")
        for item in inputs or ():
            self._hear(item)
        if spec.in_conversation and inputs is None:
            session.settle()
        session.drop_speculation()
        session.replies.create(spec, Times(session.out.now), inputs)
        session.reply_if_owed()

    def _inputs(self, values: list[object]) -> list[Item]:
        """The items that a response is to answer in place of the conversation."""
        session = self._session
        if len(values) > MAX_INPUT_ITEMS:
            raise ClientError(f"At most {MAX_INPUT_ITEMS} items can be given.", param="response.input")
        items: list[Item] = []
        for index, value in enumerate(values):
            fields = Fields(value, f"response.input[{index}]")
            if fields.get("type") == "item_reference":
                item_id = fields.need_string("id", MAX_ID)
                known = session.conversation.get(item_id)
                if known is None:
                    message = f"There is no item '{item_id}' in the conversation."
                    raise ClientError(message, code="invalid_item_reference", param=fields.path("id"))
                items.append(known)
                continue
            if fields.get("type") is None and isinstance(value, dict) and "id" in value:
                raise wrong_type(fields.path("type"), "a string", None)
            item = parse_item(fields, session.config.input_format, sees=session.model.sees)
            item.id = item.id or session.out.new_id("item")
            _check_call(item, (*session.conversation.items, *items))
            items.append(item)
        return items

    def _cancel(self, response_id: str | None) -> None:
        self._session.replies.give_up()
        live = self._session.replies.live
        if live is None or response_id not in (None, live.id):
            message = "Cancellation failed: no active response found."
            raise ClientError(message, code="response_cancel_not_active", param="response_id" if response_id else None)
        self._session.replies.cancel("client_cancelled")
        self._session.reply_if_owed()


def _check_call(item: Item, known: Iterable[Item]) -> None:
    """What a function gave back belongs to a call. Raises :class:`ClientError`."""
    if item.type != "function_call_output":
        return
    if not any(other.type == "function_call" and other.call_id == item.call_id for other in known):
        message = f"Tool call ID '{item.call_id}' not found in conversation."
        raise ClientError(message, code="invalid_tool_call_id")


def _seconds(part: Part) -> float:
    """Length of a part's sound as the client sent it."""
    sound = part.sounds[0]
    if not isinstance(sound, EncodedClip):
        return round(len(sound.samples) / sound.rate, 3)
    return round(len(sound.data) / (48_000 if sound.format == "audio/pcm" else 8_000), 3)

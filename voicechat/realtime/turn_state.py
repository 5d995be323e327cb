"""Whose turn it is: one state, and the table of all that may become of it. Pure.

The user's sound, what the ASR makes of it, the responses and the client all move one :class:`TurnMachine`, and nothing
else says whose turn it is. ``docs/turns.md`` has the diagram.
"""

from __future__ import annotations

import enum


class TurnState(enum.Enum):
    """Where the conversation stands."""

    CONNECTING = enum.auto()
    """The client can't be told anything yet."""
    IDLE = enum.auto()
    """Nobody speaks, and no response is due."""
    RESPONDING = enum.auto()
    """The agent's turn: a response is due or being made, and nothing of it is heard yet."""
    REPLYING = enum.auto()
    """The agent's turn: it is heard."""
    TENTATIVE = enum.auto()
    """The user's turn has ended, as it seems: if the user goes on soon, it is taken back, and with it the response that
    was begun, of which a syllable may have been heard."""
    SUSPECTED = enum.auto()
    """Voice in a reply that may become a barge-in; where the server plays, the reply is held."""
    SPEAKING = enum.auto()
    """The user's turn: voice."""
    PAUSING = enum.auto()
    """The user's turn, in a pause that may be its end."""
    CONTESTED = enum.auto()
    """The user speaks in a reply, which waits to learn whether that is a barge-in or a backchannel."""
    CONTESTED_PAUSE = enum.auto()
    """The same, and the user pauses."""
    BACKCHANNEL = enum.auto()
    """The user has said a listener's word in a reply, after which more may follow ("okay, but")."""
    ACKNOWLEDGED = enum.auto()
    """It was a listener's word, or nothing: the reply goes on, unless the user does."""
    CLOSED = enum.auto()
    """Nothing is said any more."""


class Cue(enum.Enum):
    """What may move a :class:`TurnMachine`."""

    CONNECT = enum.auto()
    """The client is there."""
    DUE = enum.auto()
    """A response is due or being made."""
    HEARD = enum.auto()
    """A reply is heard."""
    OVER = enum.auto()
    """No response is due, being made or heard."""
    SUSPECT = enum.auto()
    """Voice in a reply."""
    DISMISS = enum.auto()
    """It did not become a turn."""
    OPEN = enum.auto()
    """A turn opens, and no reply waits for it."""
    CONTEST = enum.auto()
    """A turn opens, and a reply waits to learn what it is."""
    PAUSE = enum.auto()
    """The user pauses."""
    RESUME = enum.auto()
    """The user speaks on."""
    MURMUR = enum.auto()
    """A listener's word was heard, after which more may follow."""
    ACKNOWLEDGE = enum.auto()
    """Nothing follows it."""
    YIELD = enum.auto()
    """No reply waits any more: it was a barge-in, or the reply was given up for another cause."""
    END = enum.auto()
    """The turn is over."""
    LEAN = enum.auto()
    """The turn is over, as it seems: a likely end, not a certain one."""
    SETTLE = enum.auto()
    """It was the end: the user has not gone on."""
    RETAKE = enum.auto()
    """It was not: the user goes on."""
    DISCARD = enum.auto()
    """The turn was none."""
    CLOSE = enum.auto()
    """The client is gone, or the session has expired."""


_S, _C = TurnState, Cue

AGENT = frozenset({_S.IDLE, _S.RESPONDING, _S.REPLYING})
"""No turn of the user's is open, and nothing is suspected."""

OPEN = frozenset({_S.SPEAKING, _S.PAUSING, _S.CONTESTED, _S.CONTESTED_PAUSE, _S.BACKCHANNEL, _S.ACKNOWLEDGED})
"""A turn of the user's is open."""

UNDECIDED = frozenset({_S.CONTESTED, _S.CONTESTED_PAUSE, _S.BACKCHANNEL})
"""A reply waits to learn what is being said in it."""

TRANSITIONS: dict[tuple[TurnState, Cue], TurnState] = {
    (_S.CONNECTING, _C.CONNECT): _S.IDLE,
    **{
        (state, cue): after
        for state in AGENT
        for cue, after in {
            _C.OVER: _S.IDLE,
            _C.DUE: _S.RESPONDING,
            _C.HEARD: _S.REPLYING,
            _C.SUSPECT: _S.SUSPECTED,
            _C.OPEN: _S.SPEAKING,
            _C.CONTEST: _S.CONTESTED,
            _C.END: _S.IDLE,  # by a commit of the client, where turns are not detected
        }.items()
    },
    (_S.SUSPECTED, _C.DISMISS): _S.IDLE,
    (_S.SUSPECTED, _C.OPEN): _S.SPEAKING,
    (_S.SUSPECTED, _C.CONTEST): _S.CONTESTED,
    (_S.TENTATIVE, _C.SETTLE): _S.IDLE,
    (_S.TENTATIVE, _C.RETAKE): _S.SPEAKING,
    (_S.SPEAKING, _C.PAUSE): _S.PAUSING,
    (_S.PAUSING, _C.RESUME): _S.SPEAKING,
    (_S.CONTESTED, _C.PAUSE): _S.CONTESTED_PAUSE,
    (_S.CONTESTED, _C.YIELD): _S.SPEAKING,
    (_S.CONTESTED, _C.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.CONTESTED_PAUSE, _C.RESUME): _S.CONTESTED,
    (_S.CONTESTED_PAUSE, _C.YIELD): _S.PAUSING,
    (_S.CONTESTED_PAUSE, _C.MURMUR): _S.BACKCHANNEL,
    (_S.CONTESTED_PAUSE, _C.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.BACKCHANNEL, _C.RESUME): _S.CONTESTED,
    (_S.BACKCHANNEL, _C.YIELD): _S.PAUSING,
    (_S.BACKCHANNEL, _C.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.ACKNOWLEDGED, _C.RESUME): _S.SPEAKING,
    (_S.ACKNOWLEDGED, _C.PAUSE): _S.ACKNOWLEDGED,
    **{(state, _C.DISCARD): _S.IDLE for state in OPEN},
    **{(state, _C.LEAN): _S.TENTATIVE for state in (_S.SPEAKING, _S.PAUSING)},
    **{(state, _C.END): _S.IDLE for state in OPEN - {_S.ACKNOWLEDGED}},
    **{(state, _C.CLOSE): _S.CLOSED for state in _S if state is not _S.CLOSED},
}
"""All transitions. What is not here can't happen."""


class IllegalTransition(RuntimeError):
    """A cue that has no meaning in the state: a fault of the caller's."""


class TurnMachine:
    """Holds the state. It begins as :attr:`TurnState.CONNECTING`."""

    def __init__(self) -> None:
        self._state = TurnState.CONNECTING

    @property
    def state(self) -> TurnState:
        """Where the conversation stands."""
        return self._state

    @property
    def open(self) -> bool:
        """True while a turn of the user's is open, pauses included."""
        return self._state in OPEN

    @property
    def undecided(self) -> bool:
        """True while a reply waits to learn what is being said in it."""
        return self._state in UNDECIDED

    @property
    def closed(self) -> bool:
        """True once nothing is said any more."""
        return self._state is TurnState.CLOSED

    def may(self, cue: Cue) -> bool:
        """True if ``cue`` has a meaning now."""
        return (self._state, cue) in TRANSITIONS

    def feed(self, cue: Cue) -> TurnState:
        """Follow ``cue``; the state after it. Raises :class:`IllegalTransition`, and nothing has changed."""
        try:
            self._state = TRANSITIONS[self._state, cue]
        except KeyError:
            raise IllegalTransition(f"{cue.name} has no meaning while {self._state.name}") from None
        return self._state

"""The table of whose turn it is, and all sequences of cues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.realtime.turn_state import (
    AGENT,
    OPEN,
    TRANSITIONS,
    UNDECIDED,
    Cue,
    IllegalTransition,
    TurnMachine,
    TurnState,
)

CUES = st.lists(st.sampled_from(Cue), max_size=60)


def reached(*cues: Cue) -> TurnState:
    machine = TurnMachine()
    for cue in (Cue.CONNECT, *cues):
        machine.feed(cue)
    return machine.state


@pytest.mark.parametrize(
    ("cues", "state"),
    [
        ("OPEN PAUSE RESUME PAUSE END DUE HEARD OVER", TurnState.IDLE),
        ("HEARD SUSPECT DISMISS HEARD", TurnState.REPLYING),
        ("HEARD SUSPECT CONTEST YIELD PAUSE END DUE", TurnState.RESPONDING),
        ("HEARD CONTEST PAUSE MURMUR ACKNOWLEDGE DISCARD HEARD", TurnState.REPLYING),
        ("HEARD CONTEST PAUSE MURMUR RESUME YIELD", TurnState.SPEAKING),
        ("HEARD CONTEST PAUSE YIELD", TurnState.PAUSING),
        ("HEARD CONTEST ACKNOWLEDGE RESUME", TurnState.SPEAKING),
        ("OPEN PAUSE CLOSE", TurnState.CLOSED),
    ],
)
def test_the_ways_of_a_conversation(cues, state):
    assert reached(*(Cue[name] for name in cues.split())) is state


@given(CUES)
def test_every_cue_moves_by_the_table_or_is_refused_and_moves_nothing(cues):
    machine = TurnMachine()
    for cue in cues:
        before = machine.state
        assert machine.may(cue) == ((before, cue) in TRANSITIONS)
        if machine.may(cue):
            assert machine.feed(cue) is machine.state is TRANSITIONS[before, cue]
        else:
            with pytest.raises(IllegalTransition, match=cue.name):
                machine.feed(cue)
            assert machine.state is before
        assert machine.open == (machine.state in OPEN)


@given(CUES)
def test_nothing_opens_but_from_the_agents_side_and_nothing_follows_the_close(cues):
    machine, closed = TurnMachine(), False
    for cue in cues:
        if not machine.may(cue):
            continue
        before, after = machine.state, machine.feed(cue)
        assert not closed, "nothing after the close"
        closed = after is TurnState.CLOSED
        if cue is Cue.RETAKE:
            assert before is TurnState.TENTATIVE, "only an end that was a likely one is taken back"
        elif after in OPEN and before not in OPEN:
            assert before in AGENT | {TurnState.SUSPECTED} and cue in (Cue.OPEN, Cue.CONTEST)
        if before in OPEN and after not in OPEN:
            assert cue in (Cue.END, Cue.LEAN, Cue.DISCARD, Cue.CLOSE), "every open turn ends by being ended"
        if after in UNDECIDED and before not in UNDECIDED:
            assert cue is Cue.CONTEST


def test_every_state_is_reached_and_every_open_turn_can_end():
    seen, new = {TurnState.CONNECTING}, {TurnState.CONNECTING}
    while new:
        new = {after for (before, _), after in TRANSITIONS.items() if before in new} - seen
        seen |= new
    assert seen == set(TurnState)
    for state in OPEN:
        assert TRANSITIONS[state, Cue.DISCARD] is TurnState.IDLE
        assert state is TurnState.ACKNOWLEDGED or TRANSITIONS[state, Cue.END] is TurnState.IDLE
    assert all((state, Cue.CLOSE) in TRANSITIONS for state in TurnState if state is not TurnState.CLOSED)
    assert {cue for _, cue in TRANSITIONS} == set(Cue)


def test_what_was_acknowledged_is_never_committed():
    assert (TurnState.ACKNOWLEDGED, Cue.END) not in TRANSITIONS

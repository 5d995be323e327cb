"""The phoneme alphabet, how much of a text one step of 40 ms sees of it, and what a step is on the wire."""

SYMBOLS = 178
"""Size of the phoneme alphabet (0 = pad)."""
NONE_SYMBOL = SYMBOLS
"""Stands for positions outside the text."""
LEFT = 3
RIGHT = 5
SYMBOL_WINDOW = LEFT + 1 + RIGHT
"""Rows that one step sees: three before the pointer to five after it."""

STEP_SAMPLES = 960
"""Samples of one step at 24 kHz: 40 ms."""
STEP_BYTES = 2 + SYMBOL_WINDOW
"""A step on its way to the VoiceBox: its code (uint16, little-endian), and the window of symbols that the Talker
saw."""
LOOK_AHEAD = 2
"""Steps after a chunk that still touch its sound."""

"""The phoneme alphabet, and how much of a text one step of 40 ms sees of it."""

SYMBOLS = 178
"""Size of the phoneme alphabet (0 = pad)."""
NONE_SYMBOL = SYMBOLS
"""Stands for positions outside the text."""
LEFT = 3
RIGHT = 5
SYMBOL_WINDOW = LEFT + 1 + RIGHT
"""Rows that one step sees: three before the pointer to five after it."""

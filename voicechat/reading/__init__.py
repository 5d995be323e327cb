"""Written text to words that can be read aloud: numbers, money, dates, units, signs, markup. Pure; English."""

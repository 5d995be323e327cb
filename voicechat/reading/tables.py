"""What is read by table: units, currencies, abbreviations, signs. English."""

from __future__ import annotations

MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip
MONTH_FORMS = (
    {name.lower(): name for name in MONTHS} | {name[:3].lower(): name for name in MONTHS} | {"sept": "September"}
)

MAGNITUDES = {
    "k": "thousand", "K": "thousand", "M": "million", "mn": "million", "m": "million", "B": "billion",
    "bn": "billion",
    "b": "billion", "T": "trillion", "tn": "trillion", "trn": "trillion", "mio": "million",
}  # fmt: skip
"""Letters behind a number. Lower-case ``m`` and ``b`` only with money; ``m`` is a metre elsewhere."""
MAGNITUDE_WORDS = ("hundred", "thousand", "million", "billion", "trillion")

CURRENCIES: dict[str, tuple[str, str, str, str]] = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "US$": ("U.S. dollar", "U.S. dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"),
    "₺": ("lira", "lira", "kuruş", "kuruş"),
    "₪": ("shekel", "shekels", "agora", "agorot"),
    "₿": ("bitcoin", "bitcoins", "satoshi", "satoshis"),
    "R$": ("real", "reais", "centavo", "centavos"),
    "USD": ("U.S. dollar", "U.S. dollars", "cent", "cents"),
    "EUR": ("euro", "euros", "cent", "cents"),
    "GBP": ("pound", "pounds", "penny", "pence"),
    "JPY": ("yen", "yen", "sen", "sen"),
    "KRW": ("won", "won", "jeon", "jeon"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
    "CNY": ("yuan", "yuan", "fen", "fen"),
    "INR": ("rupee", "rupees", "paisa", "paise"),
    "CAD": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "SEK": ("Swedish krona", "Swedish kronor", "öre", "öre"),
    "NOK": ("Norwegian krone", "Norwegian kroner", "øre", "øre"),
    "DKK": ("Danish krone", "Danish kroner", "øre", "øre"),
    "PLN": ("zloty", "zlotys", "grosz", "groszy"),
}
SMALL_CHANGE = {"¢": ("cent", "cents")}

_PREFIXED = {
    "m": ("meter", "meters", ("k", "c", "m", "n", "µ")),
    "g": ("gram", "grams", ("k", "m", "µ")),
    "l": ("liter", "liters", ("m", "c", "d")),
    "L": ("liter", "liters", ("m", "c", "d", "µ")),
    "W": ("watt", "watts", ("k", "M", "G", "T", "m")),
    "Wh": ("watt-hour", "watt-hours", ("k", "M", "G", "T")),
    "V": ("volt", "volts", ("k", "m")),
    "Hz": ("hertz", "hertz", ("k", "M", "G", "T")),
    "J": ("joule", "joules", ("k", "M")),
    "Pa": ("pascal", "pascals", ("k", "h", "M")),
    "Ω": ("ohm", "ohms", ("k", "M")),
    "F": ("farad", "farads", ("µ", "n", "p")),
    "B": ("byte", "bytes", ("k", "K", "M", "G", "T", "P")),
    "s": ("second", "seconds", ("m", "µ", "n")),
    "cal": ("calorie", "calories", ("k",)),
    "eV": ("electronvolt", "electronvolts", ("k", "M", "G", "T")),
    "bps": ("bit per second", "bits per second", ("k", "M", "G")),
    "bit": ("bit", "bits", ("k", "M", "G")),
    "Ah": ("amp-hour", "amp-hours", ("m",)),
    "A": ("amp", "amps", ("m", "µ")),
    "N": ("newton", "newtons", ("k",)),
    "mol": ("mole", "moles", ("m",)),
    "Sv": ("sievert", "sieverts", ("m", "µ")),
}
_PREFIXES = {
    "k": "kilo", "K": "kilo", "M": "mega", "G": "giga", "T": "tera", "P": "peta", "h": "hecto", "d": "deci",
    "c": "centi",
    "m": "milli", "µ": "micro", "n": "nano", "p": "pico",
}  # fmt: skip

UNITS: dict[str, tuple[str, str]] = {
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "gal": ("gallon", "gallons"),
    "t": ("ton", "tons"),
    "ha": ("hectare", "hectares"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "mph": ("mile per hour", "miles per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kmh": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "km/s": ("kilometer per second", "kilometers per second"),
    "ft/s": ("foot per second", "feet per second"),
    "m/s²": ("meter per second squared", "meters per second squared"),
    "g/cm³": ("gram per cubic centimeter", "grams per cubic centimeter"),
    "kg/m³": ("kilogram per cubic meter", "kilograms per cubic meter"),
    "mg/dL": ("milligram per deciliter", "milligrams per deciliter"),
    "l/100km": ("liter per one hundred kilometers", "liters per one hundred kilometers"),
    "kb/s": ("kilobit per second", "kilobits per second"),
    "Mb/s": ("megabit per second", "megabits per second"),
    "Gb/s": ("gigabit per second", "gigabits per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"),
    "Mbit/s": ("megabit per second", "megabits per second"),
    "mpg": ("mile per gallon", "miles per gallon"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "bpm": ("beat per minute", "beats per minute"),
    "fps": ("frame per second", "frames per second"),
    "KiB": ("kibibyte", "kibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "TiB": ("tebibyte", "tebibytes"),
    "dB": ("decibel", "decibels"),
    "dpi": ("dot per inch", "dots per inch"),
    "px": ("pixel", "pixels"),
    "ppm": ("part per million", "parts per million"),
    "psi": ("pound per square inch", "pounds per square inch"),
    "bar": ("bar", "bars"),
    "mbar": ("millibar", "millibars"),
    "atm": ("atmosphere", "atmospheres"),
    "mmHg": ("millimeter of mercury", "millimeters of mercury"),
    "hp": ("horsepower", "horsepower"),
    "lm": ("lumen", "lumens"),
    "lx": ("lux", "lux"),
    "tbsp": ("tablespoon", "tablespoons"),
    "tsp": ("teaspoon", "teaspoons"),
    "fl oz": ("fluid ounce", "fluid ounces"),
    "sq ft": ("square foot", "square feet"),
    "sq m": ("square meter", "square meters"),
    "sq km": ("square kilometer", "square kilometers"),
    "sq mi": ("square mile", "square miles"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "℃": ("degree Celsius", "degrees Celsius"),
    "℉": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "K": ("kelvin", "kelvins"),
    "%": ("percent", "percent"),
    "‰": ("per mille", "per mille"),
    "in²": ("square inch", "square inches"),
    "ft²": ("square foot", "square feet"),
    "ft³": ("cubic foot", "cubic feet"),
    "yd²": ("square yard", "square yards"),
    "mi²": ("square mile", "square miles"),
    "bits": ("bit", "bits"),
}
for _unit, (_one, _many, _allowed) in _PREFIXED.items():
    UNITS.setdefault(_unit, (_one, _many))
    for _prefix in _allowed:
        UNITS.setdefault(_prefix + _unit, (_PREFIXES[_prefix] + _one, _PREFIXES[_prefix] + _many))
for _length in ("m", "km", "cm", "mm", "µm"):
    _one, _many = UNITS[_length]
    for _power, _name in (("²", "square"), ("2", "square"), ("³", "cubic"), ("3", "cubic")):
        UNITS.setdefault(_length + _power, (f"{_name} {_one}", f"{_name} {_many}"))
del _unit, _one, _many, _allowed, _prefix, _length, _power, _name

ONLY_ATTACHED = frozenset({"A", "F", "N", "B", "J", "t", "h"})
"""Units that are read only where they stand at their number (``5A``): ``5 A`` may be anything."""
NEVER_ATTACHED = frozenset({"K", "B"})
"""Units that are read only apart from their number: ``20K`` is twenty thousand, ``2B`` two billion."""

ABBREVIATIONS = {
    "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "etc": "et cetera", "vs.": "versus",
    "vs": "versus",
    "approx.": "approximately", "ca.": "circa", "cf.": "compare", "et al.": "and others", "viz.": "namely",
    "w/": "with", "w/o": "without", "b/c": "because", "dept.": "department", "est.": "established",
    "govt.": "government",
    "Inc.": "Incorporated", "Ltd.": "Limited", "Corp.": "Corporation", "Co.": "Company", "Bros.": "Brothers",
    "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Hwy.": "Highway", "Mt.": "Mount", "Ft.": "Fort",
    "Jr.": "Junior", "Sr.": "Senior", "Esq.": "Esquire", "aka": "also known as", "a.k.a.": "also known as",
    "ASAP": "A S A P", "FYI": "F Y I", "incl.": "including", "excl.": "excluding", "max.": "maximum",
    "min.": "minimum",
    "avg.": "average", "temp.": "temperature", "tel.": "telephone", "misc.": "miscellaneous",
    "wrt": "with respect to",
    "B.C.": "B C", "A.D.": "A D", "BCE": "B C E", "&c.": "et cetera", "P.S.": "P S", "Q&A": "Q and A",
    "R&D": "R and D",
    "IPv4": "I P version four", "IPv6": "I P version six",
}  # fmt: skip
TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "St": "Saint",
    "Gen": "General",
    "Capt": "Captain", "Lt": "Lieutenant", "Col": "Colonel", "Sgt": "Sergeant", "Rev": "Reverend", "Hon": "Honorable",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Pres": "President", "Fr": "Father",
    "Mme": "Madame",
    "Messrs": "Messieurs",
}  # fmt: skip
NUMBERED = {
    "No": "number", "no": "number", "Nos": "numbers", "nos": "numbers", "Nr": "number", "Vol": "volume",
    "vol": "volume", "Fig": "figure", "fig": "figure",
    "Figs": "figures", "Ch": "chapter", "ch": "chapter", "Sec": "section", "sec": "section", "p": "page",
    "pp": "pages", "Eq": "equation", "eq": "equation", "Art": "article", "Ex": "example", "Rm": "room",
    "Apt": "apartment",
    "Pt": "part", "pt": "part", "Ed": "edition",
}  # fmt: skip
"""Before a number, with a full stop."""

ROMAN_CARDINAL = frozenset(
    "Chapter Part Act Scene Volume Book Section Phase Type Level Class Article Appendix Figure Table War Stage Grade "
    "Title Episode Season Round Division Group Block Mark Model Version Apollo Gemini Schedule Annex Canto Corps "
    "chapter part act scene volume book section phase type level class stage grade".split()
)
ROMAN_ORDINAL = frozenset(
    "Henry Louis Elizabeth George Edward Richard William James Charles Philip Philippe Ferdinand Francis Frederick "
    "Friedrich Wilhelm Alexander Nicholas Peter Paul John Pius Benedict Leo Gregory Clement Innocent Urban Mary "
    "Catherine Napoleon Ramses Ramesses Ptolemy Cleopatra Darius Xerxes Otto Joseph Leopold Albert Alfonso Carlos "
    "Felipe Gustav Harald Haakon Christian Olav Margrethe Ivan Mehmed Murad Selim Thutmose Amenhotep King Queen Pope "
    "Emperor Tsar Sultan".split()
)

SIGNS = {
    "≈": "approximately", "≠": "is not equal to", "≤": "less than or equal to", "≥": "greater than or equal to",
    "√": "square root of", "∛": "cube root of", "∞": "infinity", "π": "pi", "α": "alpha", "β": "beta", "γ": "gamma",
    "δ": "delta",
    "Δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu", "σ": "sigma", "Σ": "sigma", "φ": "phi",
    "ψ": "psi", "ω": "omega", "Ω": "omega", "∑": "sum of", "∏": "product of", "∫": "integral of", "∂": "partial",
    "∈": "in", "∉": "not in", "∪": "union", "∩": "intersection", "⊂": "subset of", "∅": "the empty set",
    "∀": "for all",
    "∃": "there exists", "×": "times", "·": "times", "÷": "divided by", "±": "plus or minus", "→": "to",
    "⇒": "implies",
    "←": "from", "↔": "to and from", "⇔": "if and only if", "∝": "proportional to", "¬": "not", "∧": "and",
    "∨": "or", "≡": "is equivalent to",
    "©": "copyright", "®": "registered", "™": "trademark", "§": "section", "¶": "paragraph", "°": "degrees",
    "✓": "check", "✔": "check", "♯": "sharp", "♭": "flat", "№": "number",
}  # fmt: skip
"""Read by name wherever they stand."""

ALONE = {
    "*": "times", "&&": "and", "||": "or", "!=": "is not equal to", "<=": "less than or equal to",
    ">=": "greater than or equal to", "=": "equals", "==": "equals", "+": "plus", "<": "less than",
    ">": "greater than",
    "~": "about", "/": "slash", "->": "to", "=>": "to", "&": "and", "%": "percent", "@": "at", "#": "number",
    "\\": "", "---": "", "***": "", "___": "", "|": "", "•": "", "^": "to the power of",
}  # fmt: skip
"""Read so only where they stand alone."""

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
VULGAR = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9),
    "⅒": (1, 10),
}  # fmt: skip
ELEMENTS = frozenset(
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb "
    "Mo Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba W Pt Au Hg Tl Pb Bi U Pu".split()
)
FILE_ENDINGS = frozenset(
    "py js ts html css json yaml yml txt md pdf png jpg jpeg gif csv zip exe sh cpp java rs go toml xml".split()
)
DOMAINS = frozenset("com org net edu gov io co uk de ai app dev info eu fr es it kr jp ch at me tv us ca au".split())

"""One written word: its markup taken off, and what is read of it where no phrase takes it."""

from __future__ import annotations

import html
import re
import unicodedata

from anyascii import anyascii

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.phrases import match
from voicechat.reading.rules.arithmetic import power

_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|[A-Za-z]{2,8});")
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)?|\]\[[^\]\s]*\]")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_URL = re.compile(r"(?i)(?:[a-z][a-z0-9+.-]*://|www\.)([^\s/?#]+)\S*")
_EMAIL = re.compile(r"([\w.+-]+)@((?:[\w-]+\.)+[A-Za-z]{2,})")
_DOMAIN = re.compile(rf"(?i)((?:[a-z0-9-]+\.)+(?:{'|'.join(sorted(t.DOMAINS))}))(?:/\S*)?")
_FILE = re.compile(rf"(?i)([\w-]+)\.({'|'.join(sorted(t.FILE_ENDINGS))})")
_FORMULA = re.compile(r"(?:\d*)(?:\(?(?:[A-Z][a-z]?)\d*\)?\d*)+(?:[⁺⁻+]|\d*[⁺⁻])?")
_EDGES = re.compile(r"^([(\[\"“‘'«¿¡]*)(.*?)([.,;:!?…\"”’'»)\]]*)$", re.DOTALL)
_NAMED = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|sigma|phi|omega|sum|int|log|sin|cos|tan"
_LATEX = (
    (re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}"), r" \1 over \2 "),
    (re.compile(r"\\sqrt\{([^{}]*)\}"), r" square root of \1 "),
    (re.compile(r"\\(?:text|mathrm|mathbf|operatorname)\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), " times "),
    (re.compile(r"\\div(?![a-z])"), " divided by "),
    (re.compile(r"\\pm(?![a-z])"), " plus or minus "),
    (re.compile(r"\\leq?(?![a-z])"), " less than or equal to "),
    (re.compile(r"\\geq?(?![a-z])"), " greater than or equal to "),
    (re.compile(r"\\neq?(?![a-z])"), " is not equal to "),
    (re.compile(r"\\approx(?![a-z])"), " approximately "),
    (re.compile(r"\\infty(?![a-z])"), " infinity "),
    (re.compile(r"\\(?:left|right|quad|,|;|!)"), " "),
    (
        re.compile(
            r"\\(alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|sigma|phi|omega|sum|int|log|sin|cos|tan)(?![a-z])"
        ),
        r" \1 ",
    ),
    (re.compile(r"\\[()\[\]]"), " "),
)
_LETTER = r"(?:(?![²³⁰¹⁴-⁹⁻⁺])[^\W\d_])"
_KEPT = frozenset("“”‘’—–…")
_NAMES_OF_CODE = {
    "py": "Python", "python": "Python", "js": "JavaScript", "javascript": "JavaScript", "ts": "TypeScript",
    "typescript": "TypeScript", "sh": "shell", "bash": "shell", "shell": "shell", "cpp": "C plus plus",
    "c++": "C plus plus",
    "cs": "C sharp", "csharp": "C sharp", "c": "C", "java": "Java", "go": "Go", "rust": "Rust", "rs": "Rust",
    "ruby": "Ruby",
    "rb": "Ruby", "php": "PHP", "sql": "SQL", "html": "HTML", "css": "CSS", "json": "JSON", "yaml": "YAML",
    "xml": "XML",
    "swift": "Swift", "kotlin": "Kotlin", "r": "R", "lua": "Lua", "markdown": "Markdown",
}  # fmt: skip


def name_of_code(tag: str) -> str | None:
    """The language that the tag behind a fence names; None if it is none that is known."""
    return _NAMES_OF_CODE.get(tag.lower())


def strip_markup(word: str) -> str:
    """A word without Markdown, HTML and LaTeX marks; may come back as several words, or as none."""
    text = _ENTITY.sub(lambda found: html.unescape(found.group()), word)
    if _URL.search(text) and not text.startswith(("[", "![")) and "](" not in text:
        return text.strip("<>*`_")
    text = _LINK_TARGET.sub("", text)
    text = re.sub(r"^(\W*)!\[", r"\1", text)
    text = _TAG.sub(" ", text)
    if "\\" in text:
        for pattern, written in _LATEX:
            text = pattern.sub(written, text)
        text = text.replace("\\", " ")
    if re.fullmatch(r"\$\$?[^$\d][^$]*\$\$?[.,;:!?]*", text) or text in {"$$", "$"}:
        text = text.replace("$", "")
    code = "`" in text
    text = text.replace("`", "")
    if code:
        text = re.sub(r"\(\)", "", text)
    if text in t.ALONE:
        return text
    text = re.sub(r"\*\*|__|~~", "", text)
    text = re.sub(r"(?<![\w)])\*(?=\S)|(?<=\S)\*(?![\w(])", "", text)
    text = re.sub(r"(?<![\w])_(?=\S)|(?<=\S)_(?!\w)", "", text)
    text = re.sub(r"[\[\]{}]+", " ", text)
    return " ".join(text.split())


def say(word: str, previous: str = "") -> str:
    """What is read of one word, its punctuation kept. ``previous`` is the written word before it."""
    if word in t.ALONE:
        return t.ALONE[word]
    if word in t.ABBREVIATIONS:
        return t.ABBREVIATIONS[word]
    found = _EDGES.match(word)
    assert found is not None
    lead, core, tail = found.groups()
    if not core:
        return word if _KEPT & set(word) or not word.strip(".,;:!?") else ""
    if core + tail[:1] in t.ABBREVIATIONS and tail[:1] == ".":
        said = t.ABBREVIATIONS[core + "."]
        return f"{lead}{said}{tail[1:]}"
    if core in t.ABBREVIATIONS:
        return f"{lead}{t.ABBREVIATIONS[core]}{tail}"
    if tail.startswith(".") and core in {"St", "Dr"} and previous[:1].isupper():
        return f"{lead}{'Street' if core == 'St' else 'Drive'}{tail[1:]}"
    said = _core(core)
    return f"{lead}{said}{tail}" if said else tail


def _core(core: str) -> str:
    if url := _URL.fullmatch(core):
        return dotted(url.group(1).removeprefix("www.").strip(".,;:!?\"')("))
    if email := _EMAIL.fullmatch(core):
        return f"{dotted(email.group(1))} at {dotted(email.group(2))}"
    if domain := _DOMAIN.fullmatch(core):
        return dotted(domain.group(1).removeprefix("www."))
    if file := _FILE.fullmatch(core):
        return f"{words_of(file.group(1))} dot {_ending(file.group(2))}"
    if core[0] == "#" and len(core) > 1:
        return f"hashtag {words_of(core[1:])}"
    if core[0] == "@" and len(core) > 1:
        return f"at {words_of(core[1:])}"
    if re.fullmatch(r"[A-GJ]#", core):
        return f"{core[0]} sharp"
    if core in {"C++", "c++"}:
        return "C plus plus"
    if said := _formula(core):
        return said
    if (equation := re.fullmatch(r"([A-Za-z]\w*)=(\S+)", core)) and (value := match([equation.group(2)])):
        return f"{words_of(equation.group(1))} equals {value.text}"
    if len(core) > 1 and core.isalpha() and not any(c.isascii() or "À" <= c <= "ɏ" for c in core):
        return anyascii(core)
    if re.search(r"\d|[^\W\d_][_/]|[A-Za-z][²³]", core) or any(c in t.SIGNS or c in t.VULGAR for c in core):
        return words_of(core)
    if "&" in core:
        return " ".join(core.replace("&", " and ").split())
    if "@" in core:
        return " ".join(core.replace("@", " at ").split())
    return plain(core)


def _ending(ending: str) -> str:
    return ending if ending in {"zip", "css", "go"} else " ".join(ending.upper()) if len(ending) < 4 else ending.upper()


def dotted(address: str) -> str:
    """``john.doe`` to ``john dot doe``."""
    named = {".": " dot ", "-": " dash ", "_": " underscore ", "+": " plus ", ":": " colon "}
    text = "".join(named.get(character, character) for character in address)
    return " ".join(words_of(part) if any(c.isdigit() for c in part) else part for part in text.split())


def _formula(core: str) -> str | None:
    """``H2O`` and ``H₂SO₄`` letter by letter, if all of it are elements and there is a count among them."""
    text = core.translate(t.SUBSCRIPTS)
    if not re.search(r"[A-Za-z)]\d", text) or not _FORMULA.fullmatch(text):
        return None
    elements = re.findall(r"[A-Z][a-z]?", text)
    if not all(element in t.ELEMENTS for element in elements):
        return None
    if core == text and len(elements) == 1 and elements[0] not in {"O", "N", "H"}:
        return None  # B12, C4, K2 are names
    if core == text and len(elements) == 1 and not re.fullmatch(r"[ONH][23]", text):
        return None
    said: list[str] = []
    for piece in re.findall(r"[A-Z][a-z]?|\d+|[⁺⁻+]", text):
        if piece.isdigit():
            said.append(n.cardinal(int(piece)))
        elif piece in "⁺⁻+":
            said.append("minus" if piece == "⁻" else "plus")
        else:
            said.append(" ".join(piece.upper()))
    return " ".join(said)


def words_of(text: str) -> str:
    """A name made of letters, digits and signs (``MP3``, ``snake_case``, ``camelCase9``) as words."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text) if re.search(r"[a-z][A-Z][a-z]", text) else text
    said: list[str] = []
    for piece in re.findall(rf"[²³⁰¹⁴-⁹⁻⁺]+|\d+(?:\.\d+)?|{_LETTER}+(?:['’]{_LETTER}+)*|\S", text):
        if piece in t.VULGAR:
            top, bottom = t.VULGAR[piece]
            said.append(n.fraction(top, bottom))
        elif re.fullmatch(r"[²³⁰¹⁴-⁹⁻⁺]+", piece):
            said.append(power(piece))
        elif piece[0].isdigit():
            said.append(_digits(piece))
        elif piece in t.SIGNS:
            said.append(t.SIGNS[piece])
        elif piece == "/":
            said.append("slash")
        elif piece in "+%&=@":
            said.append(t.ALONE[piece])
        elif piece in t.ALONE or not piece[0].isalpha():
            if piece in ",;:.!?" and said:
                said[-1] += "," if piece != "." else " point" if said else ""
        else:
            said.append(plain(piece))
    return " ".join(" ".join(said).split())


def _digits(text: str) -> str:
    number = n.parse(text)
    if number is None:
        return n.digits(text)
    if number.decimals is None and len(text) > 4:
        return n.digits(text)
    if number.decimals is None and len(text) == 4 and text[0] != "0":
        return n.year(int(text))
    if number.decimals is None and len(text) == 3 and text[0] != "0" and text[1:] != "00":
        return f"{n.cardinal(text[0])} {'oh ' if text[1] == '0' else ''}{n.cardinal(int(text[1:]))}"
    return number.words()


def plain(text: str) -> str:
    """Only characters that the reader knows: Latin letters, ASCII, typographic marks; other scripts transliterated."""
    out: list[str] = []
    for character in unicodedata.normalize("NFC", text):
        if character.isascii():
            out.append(character if character.isprintable() else " ")
        elif character in t.SIGNS:
            out.append(f" {t.SIGNS[character]} ")
        elif character in _KEPT or "À" <= character <= "ɏ" or "Ḁ" <= character <= "ỿ":
            out.append(character)
        elif character.isalpha():
            out.append(anyascii(character))
    return " ".join(re.sub(r"[|<>~^*{}\[\]]+", " ", "".join(out)).split())

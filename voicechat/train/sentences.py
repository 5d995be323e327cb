"""Sentences made by rule: numbers, dates, names, questions, lists, short answers, abbreviations, made-up words."""

from __future__ import annotations

import random
import re

MONTHS = (
    "January February March April May June July August September October November December"
).split()  # fmt: skip
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
FIRST = (
    "Anna Ben Carla David Elena Felix Grace Hannah Isaac Julia Kevin Laura Marcus Nina Oscar Paula Quentin Rosa Samuel "
    "Teresa Ursula Victor Wendy Xavier Yasmin Zoe Ahmed Priya Kenji Olga Miguel Fatima Chen Ingrid Kwame Siobhan"
).split()
LAST = (
    "Adams Baker Costa Dubois Evans Fischer Garcia Hughes Ivanov Jensen Kowalski Lopez Moreau Nakamura O'Brien Patel "
    "Quinn Rossi Schmidt Tanaka Underwood Vargas Wagner Xu Young Zimmerman Shakespeare Einstein Lovelace Curie Gandhi"
).split()
PLACES = (
    "Paris London Berlin Madrid Rome Lisbon Vienna Prague Warsaw Athens Cairo Nairobi Lagos Tokyo Seoul Beijing Delhi "
    "Mumbai Sydney Auckland Toronto Chicago Boston Seattle Denver Houston Brazil Portugal Argentina Canada Australia "
    "Egypt Kenya Japan China India Norway Sweden Finland Iceland Ireland Scotland Switzerland Austria Hungary Peru"
).split()
THINGS = (
    "apples oranges tickets books chairs bottles letters photos eggs coins stamps flowers bricks boxes keys candles "
    "cookies pencils shirts lamps maps plates spoons towels pillows bicycles boats bridges windows doors"
).split()
TOPICS = (
    "the weather;cooking pasta;the history of music;black holes;houseplants;ancient Rome;sleeping better;learning to "
    "swim;electric cars;the human heart;saving money;volcanoes;chess openings;the moon;birdsong;baking bread;good "
    "manners;job interviews;the deep sea;jazz;photography;earthquakes;reading faster;public speaking;tea;dinosaurs;"
    "recycling;vaccines;the Olympic Games;gravity;bees;time zones;knitting;solar power;the stock market;glaciers;opera;"
    "robots;dreams;compost;whales;prime numbers;coffee;sunburn;democracy;lightning;the alphabet;marathons;cheese"
).split(";")
SHORT = (
    "Yes. No. Maybe. Sure. Of course. Certainly. Exactly! Absolutely! Right. Okay. Hello! Hi there! Goodbye. Thanks. "
    "You're welcome. Sorry. Never. Always. Why not? Really? Great! Perfect. Not yet. I see. Well done! Good morning. "
    "Good night. Please wait. I don't know. That's right. It depends. Not at all. Sounds good. Go ahead. Hmm. Oh. Wow!"
)
OPENERS = (
    "Sure, ;Well, ;Of course! ;Actually, ;In short, ;Honestly, ;As far as I know, ;Yes, ;No, ;Good question. ;"
    "I think ;Let me see. ;For example, ;However, ;Usually, ;On the other hand, "
).split(";")
UNITS = (
    "kilometers miles meters feet kilograms pounds liters degrees hours minutes seconds years percent dollars".split()
)
CONSONANTS = "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl gr pl pr sh sk sl sp st str th tr wh".split()
VOWELS = "a e i o u ai ea ee ie oa oo ou ay".split()
ENDINGS = "n r s t l m ck nd ng st rt sh th x on er ing ly ic a o us y".split()


def made_word(rng: random.Random) -> str:
    """A word that no lexicon holds."""
    syllables = [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    return "".join(syllables) + rng.choice(ENDINGS)


def number(rng: random.Random) -> str:
    """A number as people and models write it."""
    kind = rng.randrange(8)
    if kind == 0:
        return str(rng.randrange(0, 13))
    if kind == 1:
        return str(rng.randrange(13, 100))
    if kind == 2:
        return f"{rng.randrange(100, 1000)}"
    if kind == 3:
        return f"{rng.randrange(1000, 1_000_000):,}"
    if kind == 4:
        return f"{rng.randrange(0, 100)}.{rng.randrange(1, 100)}"
    if kind == 5:
        return f"{rng.randrange(1, 50)} {rng.choice(('hundred', 'thousand', 'million', 'billion'))}"
    if kind == 6:
        return f"{rng.randrange(1, 32)}{'th' if rng.random() < 0.5 else ''}".replace("1th", "1st").replace("2th", "2nd")
    return str(rng.randrange(1500, 2031))


def name(rng: random.Random) -> str:
    """A person's name, sometimes with a title or initials."""
    first, last = rng.choice(FIRST), rng.choice(LAST)
    kind = rng.randrange(5)
    if kind == 0:
        return f"{rng.choice(('Dr.', 'Mr.', 'Mrs.', 'Ms.', 'Prof.'))} {last}"
    if kind == 1:
        return f"{first[0]}. {last}"
    return first if kind == 2 else f"{first} {last}"


def date(rng: random.Random) -> str:
    """A date or a time of day."""
    month, day, year = rng.choice(MONTHS), rng.randrange(1, 29), rng.randrange(1700, 2031)
    kind = rng.randrange(6)
    if kind == 0:
        return f"{month} {day}, {year}"
    if kind == 1:
        return f"the {day}th of {month}" if day > 3 else f"the first of {month}"
    if kind == 2:
        clock = f"{rng.randrange(1, 13)}:{rng.randrange(0, 60):02d} {rng.choice(('am', 'pm', 'p.m.'))}"
        return f"{rng.choice(DAYS)} at {clock}"
    if kind == 3:
        return f"{year}"
    if kind == 4:
        return f"{rng.choice(DAYS)}, {month} {day}"
    return f"{rng.randrange(1, 13)} o'clock"


def made_sentence(rng: random.Random) -> str:
    """One sentence by a random rule."""
    return rng.choice(_RULES)(rng)


def _count(rng: random.Random) -> str:
    place = rng.choice(("box", "room", "shop"))
    return f"{rng.choice(OPENERS)}there are {number(rng)} {rng.choice(THINGS)} in the {place}."


def _price(rng: random.Random) -> str:
    price = f"{rng.choice('$£€')}{rng.randrange(1, 2000)}{rng.choice(('', '.50', '.99', ' million'))}"
    change = f"{rng.randrange(1, 100)}% {rng.choice(('more', 'less'))}"
    return f"The {rng.choice(THINGS)} cost {price}, which is {change} than before."


def _dated(rng: random.Random) -> str:
    verb = rng.choice(("was born on", "moved to the city on", "called me on", "will arrive on", "finished the work by"))
    return f"{name(rng)} {verb} {date(rng)}."


def _question(rng: random.Random) -> str:
    forms = (
        "Do you know {n}?", "What is {x} plus {y}?", "Where can I buy {t} in {p}?", "Why does {n} like {p} so much?",
        "How many {t} do you need?", "When did {n} leave {p}?", "Who wrote that letter to {n}?",
        "Would you rather visit {p} or {q}?", "Is it {x} or {y} {u}?", "How far is {p} from {q}?",
    )  # fmt: skip
    return rng.choice(forms).format(**_parts(rng))


def _parts(rng: random.Random) -> dict[str, str]:
    return {
        "n": name(rng), "x": number(rng), "y": number(rng), "t": rng.choice(THINGS), "p": rng.choice(PLACES),
        "q": rng.choice(PLACES), "u": rng.choice(UNITS), "w": made_word(rng), "d": date(rng), "o": rng.choice(OPENERS),
        "s": rng.choice(TOPICS),
    }  # fmt: skip


def _list(rng: random.Random) -> str:
    items = rng.sample(THINGS, rng.randrange(3, 6))
    if rng.random() < 0.3:
        return "You will need:\n" + "\n".join(f"{rng.choice(('-', '*', '1.'))} {item}" for item in items) + "\n"
    return f"{rng.choice(OPENERS)}you will need {', '.join(items[:-1])}, and {items[-1]}."


def _short(rng: random.Random) -> str:
    return rng.choice(re.findall(r"[A-Z][^.!?]*[.!?]", SHORT))


def _answer(rng: random.Random) -> str:
    forms = (
        "{x}.", "{n}.", "{p}.", "{x} {u}.", "{o}{p}.", "The answer is {x}.", "It is {x} {u}.", "The capital is {p}.",
        "{p} is about {x} {u} away from {q}.", "{n} is from {p}.", "{x} plus {y} is a good guess.", "On {d}.",
    )  # fmt: skip
    return rng.choice(forms).format(**_parts(rng))


def _abbreviated(rng: random.Random) -> str:
    forms = (
        "The U.S. and the U.K. signed it, i.e. both agreed.", "Bring fruit, e.g. {t}, to {p} St. No. {x}.",
        "The CPU runs at {x} GHz, while the GPU needs {y} watts.", "NASA, the FBI, and the BBC sent {n} a letter.",
        "It measures {x} km by {y} cm.", "Use HTML, CSS, or PDF files, etc.", "{n} vs. {n}: who won?",
        "The temperature is {x}°C in {p}.", "Write to {w}@example.com or visit www.{w}.org.",
        "My Wi-Fi, my TV, and my PC are all broken.", "Chapter IV covers World War II.", "Call 555-{x}.",
    )  # fmt: skip
    return rng.choice(forms).format(**_parts(rng))


def _named_thing(rng: random.Random) -> str:
    forms = (
        "The {w} is a small animal that lives near {p}.", "{o}a {w} has {x} {t}.",
        "They call it {w}, or sometimes {w}.",
        '"{w}," said {n}, "is my favorite word."', "We took the {w} road from {p} to {q}.", "{n} {w} has {x} {t}.",
    )  # fmt: skip
    return rng.choice(forms).format(**_parts(rng)).replace("  ", " ")


_RULES = (
    _count, _price, _dated, _question, _list, _short, _answer, _abbreviated, _named_thing, _question, _named_thing,
)  # fmt: skip


def made_prompt(rng: random.Random, nouns: list[str]) -> str:
    """A question that someone might ask a voice assistant; ``nouns`` widen its range of topics."""
    forms = (
        "Tell me something about {s}.", "What is {k}?", "Can you explain {s} to a child?", "Why is {k} important?",
        "What do you think about {s}?", "Give me a tip about {s}.", "How does {k} work?",
        "Tell me a fun fact about {k}.",
        "What's the difference between {k} and {j}?", "Where does the word {k} come from?", "Who invented {k}?",
        "How many {t} do I need for {n}'s party?", "What is {x} plus {y}?", "What is the capital of {p}?",
        "What is the weather like in {p} in {m}?", "Plan a weekend in {p} for me.", "What happened in {d}?",
        "Tell me a short story about {k}.", "Tell me a joke about {s}.", "Should I learn about {s}?",
        "Is {k} good for you?", "How do I say hello in {p}?", "I'm worried about {s}. What should I do?",
        "Who was {l}?", "Name three kinds of {k}.", "What can I cook with {k}?", "How long does {k} last?",
        "Describe {k} in one sentence.", "What should I ask {n} about {s}?", "Give me a list of facts about {k}.",
        "How far is {p} from {q}?", "When did {l} live?", "Convert {x} {u} for me.", "What time is it in {p}?",
    )  # fmt: skip
    parts = _parts(rng) | {
        "k": rng.choice(nouns), "j": rng.choice(nouns), "m": rng.choice(MONTHS),
        "l": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
    }  # fmt: skip
    return rng.choice(forms).format(**parts)

"""The set on which turn-taking is tuned: the endpointing model is fitted to it, and thresholds are chosen on it."""

from __future__ import annotations

from voicechat.bench.script import Kind
from voicechat.bench.script_texts import Noise, Recorded, Texts

_QUESTIONS = (
    "Why?", "What is two plus two?", "Who wrote Romeo and Juliet?", "What is the capital of France?",
    "How are you today?", "Tell me a joke.", "What makes bread rise?", "How far away is the moon?",
    "What language do people speak in Brazil?", "How many legs does a spider have?", "What do bees do all day?",
    "Is a tomato a fruit or a vegetable?", "Can you tell me a fun fact about cats?", "What are the primary colors?",
    "How do I say thank you in Spanish?", "Who painted the Mona Lisa?", "Good morning.",
    "When is the best time of the year to visit Japan?", "How do I remove a coffee stain from a white shirt?",
    "What is the difference between a crocodile and an alligator?",
    "I have three apples and I eat one of them.{300} How many do I have left?",
    "My sister is coming to visit next week and she loves music.{300} Where should I take her?",
    "Could you explain in simple words how an airplane manages to stay up in the air?",
    "If I leave home at nine in the morning and drive for four hours, when do I arrive?",
)  # fmt: skip

_PAUSES = (
    "What is the best way,{400} to learn the piano?", "How long does it take,{350} to walk five miles?",
    "Can you give me a tip,{450} for a job interview?", "Tell me something,{300} about the history of Rome.",
    "Is it true,{500} that cats always land on their feet?", "When I go to the beach,{700} what should I take with me?",
    "If I only have eggs and rice,{900} what should I cook for dinner?", "In which country,{500} was chess invented?",
    "If it rains tomorrow,{650} what could we do with the children?", "Before I plant the roses,{550} what do I need?",
    "I would like to know,{750} how many people live in Canada.", "My phone number is five five five,{600} two three,"
    "{500} eight nine. Can you say it back?", "Please compare,{450} a bicycle,{350} and a car.",
    "When we were in Italy last summer,{850} we ate a kind of cake with coffee in it.{300} What is it called?",
)  # fmt: skip

_HESITATIONS = (
    "Um,{500} what time does the sun rise in winter?", "Uh,{400} how do I boil an egg?",
    "I was wondering, uh,{600} whether dogs can see colors.", "So,{500~} what is the tallest mountain in the world?",
    "I want to know about trees and,{700~} about the birds that live in them.",
    "Well,{450~} could you recommend a hobby, um,{500} for the winter?", "What is the, um,{600} the capital of Peru?",
    "Can you tell me, uh,{800} who invented the telephone?", "I need a name for,{600~} for a small dog.",
    "I like tea but,{700~} but what is healthier, tea or coffee?", "Hmm,{600} how often should I water my plants?",
    "Could you, um,{350} could you explain why the sky is blue?",
)  # fmt: skip

_NOISY = (
    ("What is the largest ocean on earth?", "fan", 20), ("How do plants make their food?", "street", 15),
    ("Who was the first person on the moon?", "babble", 15), ("What should I wear when it rains?", "fan", 10),
    ("How can I fall asleep faster?", "street", 20), ("What is a good name for a small dog?", "babble", 20),
    ("What is the freezing point of water?", "street", 10), ("Which animal is the fastest on land?", "babble", 10),
    ("Can you count to five,{350} and then back again?", "fan", 15),
    ("Near the south pole,{400} how do penguins stay warm?", "babble", 15),
    ("What day comes after Sunday?", "street", 15), ("Why do leaves change color in autumn?", "babble", 20),
)  # fmt: skip

_RECORDED = (
    Recorded("moonshine/clone-test.wav", "I think that America do it very well", 0.25, 4.11),
    Recorded("moonshine/two_cities.wav", "It was the best of times it was the worst of times", 1.0, 4.75),
    Recorded("moonshine/endgame_nagg_nell.wav", "Do you hear me", 0.0, 0.98),
    Recorded("moonshine/two_cities.wav", "we had everything before us we had nothing before us", 20.95, 26.3),
    Recorded(
        "moonshine/endgame_nagg_nell.wav", "Do you remember the day I went and fetched you from that ditch", 23.6, 27.5
    ),
    Recorded("moonshine/beckett.wav", "Try again Fail again Fail better", 6.4, 9.96),
    Recorded("moonshine/endgame_nagg_nell.wav", "What are you talking about", 17.5, 18.95),
    Recorded("moonshine/two_cities.wav", "for evil in the superlative degree of comparison only", 36.8, 41.9),
)

_NOISES = (
    Noise("cough", 0, -20),
    Noise("typing", 1, -38),
    Noise("throat", 2, -24),
    Noise("street", 3, -36),
    Noise("clap", 4, -22),
    Noise("fan", 5, -40),
    Noise("cough", 1, -26),
    Noise("door", 6, -22),
    Noise("babble", 0, -50),
    Noise("throat", 7, -30),
    Noise("cough", 8, -18),
    Noise("clap", 9, -28),
    Noise("typing", 10, -32),
    Noise("babble", 1, -46),
)

_BACKCHANNELS = (
    "mm-hm", "Yeah.", "Uh-huh.", "Right.", "Okay.", "mm-hm", "I see.", "Yeah, yeah.", "Oh, wow.", "Sure.", "mm-hm",
    "Mm.", "Right, okay.", "Yes.",
    "All right.", "That's great.", "Absolutely.", "Oh, really?", "Indeed.", "That is true.",
)  # fmt: skip

_INTERRUPTIONS = (
    "Stop.", "Wait, what about the other one?", "No, I meant something else.", "Hold on a second.",
    "Stop, please.", "Can you say that again?", "Actually, tell me about dogs.", "No, no, that is wrong.",
    "Okay, but how much does it cost?", "That is enough, thank you.", "Sorry, I have another question.",
    "Wait.", "Let me ask you something different.{300} Who was Mozart?", "What do you mean by that?",
    "Yeah, but why is that so?", "Be quiet.", "I think you did not understand me.", "Shorter, please.",
    "Not that one.", "Too long.", "Nonsense.", "My turn.", "Another topic.", "Louder.", "Slower, please.", "Change it.",
)  # fmt: skip

_CROWD = (
    (0, "We went to the market on Saturday, and the weather was lovely, so we stayed there until the evening."),
    (1, "The meeting was moved to Thursday because half of the people could not come any earlier."),
    (2, "My brother has bought a new car, but he says that the old one was much more comfortable."),
    (3, "They are building a bridge over the river, and it should be ready before next summer."),
    (4, "I have never seen so many people in that little shop, and everybody wanted the same thing."),
)

TUNING = Texts(
    name="tuning",
    voices=("heart", "joe", "flite rms", "flite slt", "espeak us", "espeak rp", "espeak scots"),
    questions=_QUESTIONS,
    pauses=_PAUSES,
    hesitations=_HESITATIONS,
    noisy=_NOISY,
    recorded=_RECORDED,
    noises=_NOISES,
    backchannels=_BACKCHANNELS,
    interruptions=_INTERRUPTIONS,
    crowd=_CROWD,
    takes={
        Kind.QUESTION: 2, Kind.PAUSE: 4, Kind.HESITATION: 4, Kind.NOISY: 2, Kind.BACKCHANNEL: 4, Kind.NOISE_IN_REPLY: 3,
        Kind.NOISE: 2, Kind.INTERRUPTION: 5,
    },
)  # fmt: skip

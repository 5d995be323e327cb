"""The set on which turn-taking is only measured: other voices, other texts, other sounds, and a person's recordings.

Nothing is fitted or chosen on it: who changes a threshold, a word list or a weight looks at the tuning set.
"""

from __future__ import annotations

from voicechat.bench.script import Kind
from voicechat.bench.script_texts import Joined, Noise, Recorded, Texts

_QUESTIONS = (
    "What is the weather like on Mars?", "Which planet is closest to the sun?", "Who discovered penicillin?",
    "How do you spell rhythm?", "Give me another word for happy.", "Is it safe to eat raw salmon?",
    "What does the word ambiguous mean?", "How many minutes are in a day?", "When did the Berlin wall come down?",
    "Can penguins fly?", "Good evening.", "What should I read next?", "Who was Marie Curie?",
    "Recommend a movie for tonight.", "How long should I boil pasta?", "Where do coconuts grow?", "How?",
    "What is the square root of eighty one?", "Why is the ocean salty?", "Do fish sleep?",
    "Which is heavier, gold or silver?", "Translate good night into Italian.", "What time zone is Chicago in?",
    "Sing me a song.", "How old is the universe?",
    "I just moved to a new city and I don't know anyone.{300} How can I make friends?",
    "The printer is blinking red again.{300} What can I do?",
    "Could you tell me the easiest way to get rid of fruit flies in my kitchen?",
    "My flight leaves at six in the morning, so when should I get up?",
    "Remind me to call my mother on Sunday.",
)  # fmt: skip

_PAUSES = (
    "Can you explain to me,{420} how a zipper works?", "Which of the two,{380} is better for my back?",
    "After I paint the wall,{700} how long does it need to dry?", "Is there a reason,{480} why cats purr?",
    "Give me three ideas,{340} for a birthday cake.", "As soon as the snow melts,{620} what should I plant?",
    "While I am on the train,{800} I could listen to something.{300} What do you suggest?",
    "Is a whale,{450} a fish or a mammal?", "My number is four one five,{550} nine two,{500} seven six. Repeat it.",
    "I wanted to ask you,{650} what the capital of Kenya is.", "Between Paris and London,{520} which is larger?",
    "Because my knee hurts,{750} I can not run.{300} What else could I do?",
    "Please read,{400} the second line,{360} once more.", "Write a short poem,{430} about the autumn wind.",
    "Although I like coffee,{680} it keeps me awake.{300} What can I drink?",
)  # fmt: skip

_HESITATIONS = (
    "Um,{450} how far is it to the station?", "Er,{520} what is a good soup for a cold day?",
    "I am looking for, um,{650} for a book about whales.", "So,{480~} when was the telephone invented?",
    "Could we talk about music and,{680~} and maybe about films?", "Uh,{420} where does chocolate come from?",
    "How do I, um,{560} how do I tie a tie?", "I think it was in,{720~} in the year nineteen ten. Is that right?",
    "Well,{500~} do you know a good joke?", "What is the name of the, uh,{620} the longest river in Europe?",
    "My favorite color is,{580~} is green. What goes well with it?", "Hmm,{540} how do I get ink out of a shirt?",
)  # fmt: skip

_NOISY = (
    ("How tall is the Eiffel tower?", "rain", 20), ("What do koalas eat?", "babble", 15),
    ("Who invented the light bulb?", "moh/manolo_camp-morning_coffee.wav", 20), ("What is a haiku?", "rain", 12),
    ("How many strings does a violin have?", "babble", 20), ("Why do we yawn?", "moh/reno_project-system.wav", 15),
    ("Which fruit has the most sugar?", "babble", 10), ("When is the next full moon?", "kettle", 20),
    ("Name a song,{400} that everybody knows.", "rain", 15),
    ("On a sunny day,{380} how hot does a car get?", "moh/macroform-cold_day.wav", 20),
    ("Can a parrot really talk?", "kettle", 15), ("What is the smallest country?", "babble", 15),
)  # fmt: skip

_RECORDED = (
    Recorded("allison/check-number-dial-again", "please check the number and dial again"),
    Recorded("allison/conf-getconfno", "please enter your conference number followed by the pound key"),
    Recorded("allison/conf-invalid", "that is not a valid conference number please try again"),
    Recorded("allison/confbridge-conf-end", "the conference has ended"),
    Recorded("allison/demo-nomatch", "I'm sorry there are no matches for those keywords"),
    Recorded("allison/conf-onlyperson", "you are currently the only person in this conference"),
    Recorded("allison/feature-not-avail-line", "that feature is not available on this line"),
    Recorded("allison/pls-hold-while-try", "please hold while we try to connect you"),
    Recorded("allison/privacy-prompt", "please enter your phone number starting with the area code"),
    Recorded("allison/something-terribly-wrong", "something is terribly wrong"),
    Recorded("allison/tt-monkeysintro", "they have been carried away by monkeys"),
    Recorded("allison/vm-dialout", "please wait while I connect your call"),
    Recorded("allison/vm-savefolder", "which folder should I save this message to"),
    Recorded("allison/vm-nonumber", "I'm afraid I don't know who sent this message"),
    Recorded("allison/vm-tempgreetactive", "your temporary greeting is currently active"),
    Recorded("allison/vm-whichbox", "to leave a message please enter a mailbox number"),
    Recorded(
        "allison/ss-noservice", "the number you have dialed is not in service please check the number and try again"
    ),
    Recorded("allison/vm-nobox", "you cannot reply to this message because the sender does not have a mailbox"),
    Recorded("allison/vm-helpexit", "press star for help or pound to exit"),
    Recorded("allison/hello-world", "hello world"),
    Recorded("allison/vm-newuser", "welcome to comedian mail first I will guide you through a short setup process"),
    Recorded("allison/sorry-youre-having-problems", "sorry you're having problems"),
    Joined(("allison/if-correct-press", "allison/digits/1"), (600,), "if this is correct press one"),
    Joined(("allison/vm-youhave", "allison/digits/5", "allison/vm-messages"), (500, 350), "you have five messages"),
    Joined(
        ("allison/conf-thereare", "allison/digits/7", "allison/conf-otherinparty"), (450, 300),
        "there are currently seven other participants in the conference",
    ),
    Joined(("allison/queue-holdtime", "allison/digits/8", "allison/minutes"), (700, 300),
           "the estimated hold time is currently eight minutes"),
    Joined(("allison/at-tone-time-exactly", "allison/digits/9", "allison/digits/p-m"), (550, 300),
           "at the sound of the tone the time will be exactly nine pm"),
    Joined(("allison/vm-theperson", "allison/digits/4", "allison/vm-isonphone"), (400, 400),
           "the person at extension four is on the phone"),
    Joined(("allison/queue-quantity1", "allison/digits/6", "allison/queue-quantity2"), (480, 320),
           "currently there are more than six callers waiting to speak with a representative"),
    Joined(("allison/vm-num-i-have", "allison/digits/3", "allison/digits/0"), (640, 420),
           "the number I have is three zero"),
)  # fmt: skip

_NOISES = (
    Noise("sneeze", 0, -20), Noise("keys", 1, -34), Noise("knock", 2, -24), Noise("rain", 3, -38),
    Noise("moh/reno_project-system.wav", 4, -34), Noise("freedesktop/phone-incoming-call.oga", 5, -28),
    Noise("sneeze", 6, -27), Noise("kettle", 7, -36), Noise("freedesktop/bell.oga", 8, -24),
    Noise("knock", 9, -20), Noise("keys", 10, -28), Noise("moh/macroform-cold_day.wav", 11, -40),
    Noise("babble", 2, -50), Noise("freedesktop/camera-shutter.oga", 12, -24), Noise("sneeze", 13, -22),
    Noise("freedesktop/message-new-instant.oga", 14, -26), Noise("babble", 3, -47), Noise("knock", 15, -30),
)  # fmt: skip

_BACKCHANNELS = (
    "mm-hm", "Uh-huh.", "Okay, okay.", "Yep.", "Right, right.", "I see, I see.", "Wow.", "Yes, yes.", "Oh, nice.",
    "Got it.", "mm-hm", "Sure, sure.", "Great.", "That's interesting.", "Cool.", "Of course.",
)  # fmt: skip

_INTERRUPTIONS = (
    "Enough.", "Hang on, I need to think.", "That is not what I asked.", "Pause for a moment.", "Never mind.",
    "Could you speak more slowly?", "Skip that part.", "Tell me about cats instead.", "No thanks.", "Wrong answer.",
    "Right, but what about the price?", "Thanks, I have heard enough.", "Please stop talking.", "Excuse me.",
    "Go back to the beginning.", "Can I ask something else?", "Well, I disagree.", "What was the first one again?",
    "Sure, but is it expensive?", "I don't think so.", "Repeat that.",
    "Let us change the subject.{300} Do you like art?",
    Recorded("allison/one-moment-please", "one moment please"),
    Recorded("allison/please-try-again", "please try again"),
    Recorded("allison/vm-sorry", "I'm sorry I did not understand your response"),
    Recorded("allison/goodbye", "goodbye"),
    Recorded("allison/vm-no", "no"),
)  # fmt: skip

_CROWD = (
    (0, "The train was late again this morning, and there was nowhere to sit, so I walked the last part."),
    (1, "She wants to study medicine, but first she would like to travel for a year or two."),
    (2, "If you turn left after the bakery, you will see the library on the other side of the road."),
    (3, "We have been waiting for the plumber since nine o'clock, and nobody has called us back."),
    (4, "The garden looks beautiful this year, although we hardly had any rain before the end of May."),
)

HELD_OUT = Texts(
    name="held-out",
    voices=("flite awb", "flite kal16", "espeak lancaster", "espeak caribbean", "espeak midlands"),
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
        Kind.QUESTION: 2, Kind.PAUSE: 2, Kind.HESITATION: 2, Kind.BACKCHANNEL: 5, Kind.NOISE_IN_REPLY: 2, Kind.NOISE: 2,
        Kind.INTERRUPTION: 5,
    },
    seed=500,
)  # fmt: skip

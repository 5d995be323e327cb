"""Everyday questions that the benchmark asks, always in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a leap year?",
    "Who wrote Romeo and Juliet?",
    "Why is the sky blue?",
    "What language do people speak in Brazil?",
    "How do I boil an egg?",
    "What is two plus two?",
    "Can you tell me a fun fact about cats?",
    "What should I wear when it rains?",
    "How far away is the moon?",
    "What is a good name for a small dog?",
    "How do plants make their food?",
    "What is the largest ocean on earth?",
    "Could you recommend a hobby for the winter?",
    "How can I fall asleep faster?",
    "What do bees do all day?",
    "Who painted the Mona Lisa?",
    "What is the difference between tea and coffee?",
    "How many legs does a spider have?",
    "What should I cook for dinner tonight?",
    "When is the best time to visit Japan?",
    "How do I say thank you in Spanish?",
    "What makes bread rise?",
    "Is a tomato a fruit or a vegetable?",
    "How often should I water my plants?",
    "What is the fastest animal on land?",
    "Why do leaves change color in autumn?",
    "How do I remove a coffee stain?",
    "What are the primary colors?",
    "Can you give me a tip for a job interview?",
    "How long does it take to walk five miles?",
    "What is the freezing point of water?",
)


def questions(count: int) -> Iterator[str]:
    """The first ``count`` questions, from the start again after the last."""
    return islice(cycle(QUESTIONS), count)

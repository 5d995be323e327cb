"""What ears refuse."""

from __future__ import annotations

from voicechat.contract.hearing import EarsFacts, HearingOptions


class EarsRefusal(ValueError):
    """The ears can't hear in the way that they are asked to. ``param``: the option that is to blame."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_options(facts: EarsFacts, options: HearingOptions) -> None:
    """Raise :class:`EarsRefusal` for a language that the ears don't know, or a translation if they make none."""
    if options.language is not None and facts.languages and options.language not in facts.languages:
        known = "English alone" if facts.languages == ("en",) else ", ".join(facts.languages)
        message = f"The language '{options.language}' is not heard by this server's ears ({facts.name}): {known}."
        raise EarsRefusal(message, "language")
    if options.translate and not facts.translates:
        raise EarsRefusal(
            f"This server's ears ({facts.name}) don't translate: they are no multilingual model.", "model"
        )

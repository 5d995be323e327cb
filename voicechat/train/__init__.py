"""Training of the embedded voice: texts, speech, VoiceBox, Talker, evaluation, packing (``voicechat train``)."""

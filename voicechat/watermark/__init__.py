"""The mark in every sound that the server makes: a keyed payload, embedded as the sound streams by, and its detector.

:mod:`~voicechat.watermark.embed` marks, :mod:`~voicechat.watermark.detect` finds; docs/watermark.md
tells how, and how well.
"""

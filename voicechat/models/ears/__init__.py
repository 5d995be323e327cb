"""Whisper, in two forms: what hears for Thinkers that can't, and writes captions for those that can."""

"""Qwen2.5-Omni: a dense Thinker that sees and hears, a Talker of one code a step, and Token2Wav."""

"""Qwen3-Omni (30B-A3B): sees, hears, writes and speaks; see docs/qwen.md."""

"""A brain elsewhere: any OpenAI-compatible chat completions endpoint thinks in place of the bundled Thinker."""

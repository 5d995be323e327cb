"""All that knows vLLM: engines, their workers and schedulers. What of its insides is used is named in ``adapter``."""

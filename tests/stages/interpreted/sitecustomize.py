"""On the path of processes that run vLLM's second model runner on the CPU: Triton's kernels are interpreted there.

vLLM looks for a CPU backend of Triton before it lets that runner be chosen; the interpreter needs none.
"""

import triton.backends


class _Driver:
    @classmethod
    def is_active(cls) -> bool:
        return True


class _Backend:
    driver = _Driver
    compiler = None


triton.backends.backends["cpu"] = _Backend  # type: ignore[assignment]

"""The vLLM worker class that the stages' workers derive from: the one of the platform that vLLM found."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform

Worker: Any
if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    Worker = CPUWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as GpuWorker

    Worker = GpuWorker

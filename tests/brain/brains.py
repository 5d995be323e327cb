"""Real servers of chat completions on loopback, to be a voice server's brain: vLLM's, and llama.cpp's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import needed
from voicechat.assemble import AssembledPaths
from voicechat.assemble.catalogue import SMOLLM2
from voicechat.assemble.progress import Reporter
from voicechat.assemble.sources import Fetcher
from voicechat.config import Settings

MODEL = "smollm2"
"""What they call their model."""

KINDS = ("vllm", "llama.cpp")

LLAMA = """
import signal, sys, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.model_alias, options.port = sys.argv[1], {sys.argv[2]}, int(sys.argv[3])
options.n_ctx, options.n_parallel, options.use_jinja = 4096, 4, True
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(options)
signal.pause()
"""


def start(kind: str, settings: Settings, models: AssembledPaths, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start one of the :data:`KINDS`, which leads a process group of its own; it may take a minute until it answers."""
    if kind == "vllm":
        return _vllm(models.folders["thinker"], port, log)
    needed.module("xllamacpp")
    gguf = Fetcher(settings.assemble, settings.data_dir, Reporter()).fetch(SMOLLM2.gguf)
    return _run([sys.executable, "-c", LLAMA, str(gguf), MODEL, str(port)], {}, log)


def _vllm(folder: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 << 20)]
    command += ["--block-size", "32", "--generation-config", "vllm", "--disable-log-stats"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--distributed-executor-backend", "uni"]
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    return _run(command, quiet, log)


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **environment}
        )

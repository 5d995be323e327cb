"""The keeper: a process whose only work is to own the GPU's part of the pool for as long as the server runs.

Memory that is shared between processes has to outlive all of them. Thinker and Talker may die and come back; the keeper
does nothing, so it does not die. What it announces in the pool: ``keeper[0]`` where rows lie
(:data:`~voicechat.stages.rows.ON_DEVICE` or :data:`~voicechat.stages.rows.ON_HOST`), ``keeper[1]`` its process id,
``keeper[2]`` the allocation's size in bytes, ``keeper_handle`` how to open it.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import msgspec
import numpy as np

from voicechat.contract.channel import Channel
from voicechat.contract.messages import Message
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages.host import Host, prepare_process, run_host
from voicechat.stages.placement import see_gpus

log = logging.getLogger(__name__)


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the keeper's process needs to know.

    ``gpus``: the Talker's GPU, and the Thinker's if it is another. ``peer``: False keeps rows off the GPUs even if the
    two could reach each other. ``budgets``: for each GPU, by stage, the MiB that the configuration gives it.
    """

    pool: PoolSpec
    gpus: tuple[int, ...]
    peer: bool
    budgets: dict[int, dict[str, int]]
    log_level: int


def run(sock: socket.socket, config: KeeperConfig) -> None:
    """Body of the spawned process."""
    prepare_process(1, config.log_level)
    see_gpus(sorted({*config.gpus, *config.budgets}, key=lambda gpu: (gpu != config.gpus[0], gpu)))
    run_host(sock, lambda channel: Keeper(channel, config))


class Keeper(Host):
    """Allocates, announces, and keeps."""

    def __init__(self, channel: Channel, config: KeeperConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)

    async def warm_up(self) -> dict[str, str | int | float]:
        return await asyncio.get_running_loop().run_in_executor(None, self._allocate)

    def _allocate(self) -> dict[str, str | int | float]:
        import os

        import torch

        from voicechat.stages import rows
        from voicechat.stages.cuda_ipc import Driver, as_tensor
        from voicechat.stages.placement import check_budgets

        seen = sorted({*self.config.gpus, *self.config.budgets}, key=lambda gpu: (gpu != self.config.gpus[0], gpu))
        if torch.cuda.device_count() < len(seen):
            raise RuntimeError(f"the settings name the GPUs {seen}, but only {torch.cuda.device_count()} can be seen")
        memory = {gpu: torch.cuda.mem_get_info(index) for index, gpu in enumerate(seen)}
        if not int(self.pool.keeper[1]):  # one that came back finds its own server's memory in use
            check_budgets(self.config.budgets, memory)
        pool, size = self.pool, rows.rows_bytes(self.config.pool)
        reachable = self.config.peer and all(
            torch.cuda.can_device_access_peer(seen.index(gpu), 0) for gpu in self.config.gpus[1:]
        )
        if len(self.config.gpus) > 1 and not reachable:
            log.warning("GPUs %s don't reach each other: rows go through shared memory", self.config.gpus)
            pool.keeper[1:] = os.getpid(), 0
            pool.keeper[0] = rows.ON_HOST
            return {"rows": "host", "bytes": 0}
        device = torch.device("cuda", 0)
        driver = Driver()
        torch.zeros(1, device=device)  # makes the device's context
        with torch.cuda.device(device):
            address = driver.allocate(size)
            rows.poison(rows.view_rows(as_tensor(address, size, device), self.config.pool))
            torch.cuda.synchronize(device)
            handle = driver.export(address)
        pool.keeper_handle[:] = np.frombuffer(handle, np.uint8)
        pool.keeper[1:] = os.getpid(), size
        pool.keeper[0] = rows.ON_DEVICE
        return {"rows": "device", "bytes": size}

    def handle(self, message: Message) -> None:
        raise TypeError(f"not a message for the keeper: {message!r}")

"""Assembling a model: fetching its parts by checksum, once, and turning them into folders that the stages load."""

from voicechat.assemble.assembler import AssembledPaths, assemble
from voicechat.assemble.store import AssembleError

__all__ = ["AssembleError", "AssembledPaths", "assemble"]

"""Inside the Talker's worker: the input of a position is its text row and the embedding of its code, projected."""

from __future__ import annotations

import torch
from torch import Tensor

from voicechat.models.qwen_common.conditioning import Positions, RowConditioning


class Qwen25Conditioning(RowConditioning):
    """See :class:`voicechat.contract.family.Conditioning`."""

    def _made(self, at: Positions, codes: Tensor, hidden: Tensor, *, single: bool) -> Tensor:
        model = self._model
        coded = model.codec_table.index_select(0, codes.clamp(min=0))
        made: Tensor = model.thinker_to_talker_proj(hidden + torch.where((codes >= 0)[:, None], coded, 0))
        return made

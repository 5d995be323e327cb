"""Tiny random models of the Qwen-Omni kinds, in the form in which the published ones come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = ("system", "user", "assistant")
TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'audio' %}{{ '@AUDIO@' }}{%- elif part.type == 'image' %}{{ '@IMAGE@' }}"
    "{%- else %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""What the published templates do with texts, sounds and images."""


def make_tokenizer(folder: Path, specials: dict[str, str], audio: str, image: str) -> dict[str, int]:
    """A byte-level tokenizer without merges but for the roles' names; ids of its special tokens and roles by text.

    ``specials``: the names of special tokens in ``tokenizer_config.json``, and their texts.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        made = word[0]
        for letter in word[1:]:
            if made + letter not in vocabulary:
                merges.append((made, letter))
                vocabulary[made + letter] = len(vocabulary)
            made += letter
    words = Tokenizer(models.BPE(vocabulary, merges))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *dict.fromkeys(specials.values()), "<tts_pad>", "<tts_bos>"]
    words.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in [*marks, "<tts_eos>"]])
    template = TEMPLATE.replace("@AUDIO@", audio).replace("@IMAGE@", image)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=specials
    )
    fast.chat_template = template
    fast.save_pretrained(str(folder))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, **specials, "tokenizer_class": "Qwen2TokenizerFast"}))
    (folder / "chat_template.jinja").write_text(template)
    return {text: words.token_to_id(text) for text in [*marks, "<tts_eos>", *WORDS]}


def shake(model: torch.nn.Module, seed: int, scale: float = 0.3) -> None:
    """Give every parameter random values that float32 and bfloat16 have in common."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter.shape[-1] if parameter.ndim > 1 else 1
            spread = scale if parameter.ndim < 2 else max(scale, 1.2) / fan**0.5
            base = parameter if parameter.ndim < 2 else torch.zeros_like(parameter)
            parameter.copy_((base + torch.randn_like(parameter) * spread).bfloat16().float())


def nudge(vocoder: torch.nn.Module, seed: int) -> None:
    """Away from its first values, at which scales hide most of it, but not so far that its sound is square waves."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in vocoder.parameters():
            parameter.copy_((parameter + torch.randn_like(parameter) * 0.1).bfloat16().float())


QWEN3_SPECIALS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def qwen3_config(ids: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """``config.json`` of a model of Qwen3-Omni's kind with nets of a few thousand numbers."""
    rope = {
        "rope_theta": 1e4,
        "rope_type": "default",
        "mrope_section": [3, 3, 2],
        "interleaved": True,
        "mrope_interleaved": True,
    }
    marks = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "position_id_per_seconds": 13,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": True,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_bos>"],
        "tts_eos_token_id": ids["<tts_eos>"],
        "thinker_config": {
            "model_type": "qwen3_omni_moe_thinker",
            "user_token_id": ids["user"],
            "audio_end_token_id": ids["<|audio_end|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
            **marks,
            "text_config": {
                "model_type": "qwen3_omni_moe_text",
                "vocab_size": vocabulary,
                "hidden_size": 128,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "intermediate_size": 64,
                "rope_parameters": {**rope, "mrope_section": [6, 5, 5]},
                **experts,
            },
            "audio_config": {
                "model_type": "qwen3_omni_moe_audio_encoder",
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 64,
                "d_model": 64,
                "output_dim": 128,
                "num_mel_bins": 128,
                "n_window": 50,
                "n_window_infer": 800,
                "downsample_hidden_size": 16,
            },
            "vision_config": {
                "model_type": "qwen3_omni_moe_vision_encoder",
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 128,
                "deepstack_visual_indexes": [1],
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "num_position_embeddings": 256,
                "image_size": 256,
                "apply_vit_abs_pos_embed": True,
            },
        },
        "talker_config": {
            "model_type": "qwen3_omni_moe_talker",
            **marks,
            "accept_hidden_layer": 3,
            "thinker_hidden_size": 128,
            "num_code_groups": 4,
            "codec_bos_id": 101,
            "codec_eos_token_id": 102,
            "codec_pad_id": 100,
            "codec_nothink_id": 103,
            "codec_think_bos_id": 104,
            "codec_think_eos_id": 105,
            "spatial_merge_size": 2,
            "speaker_id": {"ethan": 110, "chelsie": 111, "aiden": 112},
            "text_config": {
                "model_type": "qwen3_omni_moe_talker_text",
                "vocab_size": 64 + 1024,
                "hidden_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "intermediate_size": 64,
                "shared_expert_intermediate_size": 128,
                "rope_parameters": {**rope, "mrope_section": [6, 5, 5]},
                **experts,
            },
            "code_predictor_config": {
                "model_type": "qwen3_omni_moe_talker_code_predictor",
                "vocab_size": 64,
                "num_code_groups": 4,
                "hidden_size": 128,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
        "code2wav_config": {
            "codebook_size": 64,
            "num_quantizers": 4,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "sliding_window": 72,
            "decoder_dim": 32,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
        },
    }


def save_processors(folder: Path, kind: str, patch: int) -> None:
    """``preprocessor_config.json`` as the published folders have it: one file for sounds and images."""
    from transformers import Qwen2VLImageProcessor, WhisperFeatureExtractor

    limits = {"min_pixels": 4 * (2 * patch) ** 2, "max_pixels": 64 * (2 * patch) ** 2}
    images = Qwen2VLImageProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2, **limits).to_dict()
    sounds = WhisperFeatureExtractor(feature_size=128, n_fft=400, hop_length=160, sampling_rate=16000).to_dict()
    sounds.pop("mel_filters", None)
    names = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": kind,
    }
    both = {**images, **sounds, **limits, **names}
    (folder / "preprocessor_config.json").write_text(json.dumps(both, default=str))


def make_qwen3(folder: Path, seed: int = 5) -> Any:
    """A folder of a tiny Qwen3-Omni; also the model itself, in float32 on the CPU."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    sound, image = "<|audio_start|><|audio_pad|><|audio_end|>", "<|vision_start|><|image_pad|><|vision_end|>"
    ids = make_tokenizer(folder, QWEN3_SPECIALS, sound, image)
    config = Qwen3OmniMoeConfig(**qwen3_config(ids, -(-(max(ids.values()) + 1) // 64) * 64))
    model = Qwen3OmniMoeForConditionalGeneration(config).eval()
    shake(model.thinker, seed)
    shake(model.talker, seed + 1)
    nudge(model.code2wav, seed + 2)
    # transformers asks the Talker's configuration for it where there is sound and an image
    model.talker.config.audio_config = model.config.thinker_config.audio_config
    model.save_pretrained(str(folder))
    save_processors(folder, "Qwen3OmniMoeProcessor", 16)
    return model


QWEN25_SPECIALS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
TOKEN2WAV: dict[str, Any] = {
    "dit_config": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "ff_mult": 2,
        "emb_dim": 16,
        "head_dim": 16,
        "block_size": 6,
        "look_ahead_layers": [1],
        "look_backward_layers": [0, 2],
        "repeats": 2,
        "num_embeds": 63,
        "mel_dim": 8,
        "enc_emb_dim": 8,
        "enc_dim": 8,
        "enc_channels": [8, 8, 8, 8, 24],
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_attention_channels": 8,
        "enc_res2net_scale": 2,
        "enc_se_channels": 8,
    },
    "bigvgan_config": {
        "mel_dim": 8,
        "upsample_initial_channel": 64,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
        "upsample_rates": [5, 3, 2, 2, 2, 2],
        "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
    },
}
"""Token2Wav with nets of a few thousand numbers; blocks of three codes."""


def qwen25_config(ids: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """``config.json`` of a model of Qwen2.5-Omni's kind with nets of a few thousand numbers."""
    marks = {
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    layers = {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_sliding_window": False,
    }
    rope = {"rope_theta": 1e4, "rope_type": "default"}
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "enable_audio_output": True,
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "user_token_id": ids["user"],
            **marks,
            "text_config": {
                "model_type": "qwen2_5_omni_text",
                "vocab_size": vocabulary,
                "hidden_size": 128,
                "num_hidden_layers": 3,
                "intermediate_size": 128,
                "tie_word_embeddings": False,
                "rope_parameters": {**rope, "mrope_section": [4, 6, 6]},
                **layers,
            },
            "audio_config": {
                "model_type": "qwen2_5_omni_audio_encoder",
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 64,
                "d_model": 64,
                "output_dim": 128,
                "num_mel_bins": 128,
                "n_window": 100,
            },
            "vision_config": {
                "model_type": "qwen2_5_omni_vision_encoder",
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 128,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "window_size": 112,
                "fullatt_block_indexes": [1],
            },
        },
        "talker_config": {
            "model_type": "qwen2_5_omni_talker",
            **marks,
            "vocab_size": 64,
            "embedding_size": 128,
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "head_dim": 32,
            "tts_text_start_token_id": ids["<tts_bos>"],
            "tts_text_end_token_id": ids["<tts_eos>"],
            "tts_text_pad_token_id": ids["<tts_pad>"],
            "tts_codec_start_token_id": 60,
            "tts_codec_end_token_id": 61,
            "tts_codec_pad_token_id": 59,
            "tts_codec_mask_token_id": 62,
            "rope_parameters": {**rope, "mrope_section": [4, 6, 6]},
            "spatial_merge_size": 2,
            **layers,
        },
        "token2wav_config": TOKEN2WAV,
    }


def make_qwen25(folder: Path, seed: int = 5) -> Any:
    """A folder of a tiny Qwen2.5-Omni; also the model itself, in float32 on the CPU, with its voices."""
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    sound, image = "<|audio_bos|><|AUDIO|><|audio_eos|>", "<|vision_bos|><|IMAGE|><|vision_eos|>"
    ids = make_tokenizer(folder, QWEN25_SPECIALS, sound, image)
    config = Qwen2_5OmniConfig(**qwen25_config(ids, -(-(max(ids.values()) + 1) // 64) * 64))
    model = Qwen2_5OmniForConditionalGeneration(config).eval()
    shake(model.thinker, seed)
    shake(model.talker, seed + 1)
    nudge(model.token2wav, seed + 2)
    torch.manual_seed(seed + 3)
    voices = {
        name: {"cond": torch.randn(1, 8), "ref_mel": torch.randn(1, frames, 8), "bos_token": token}
        for name, frames, token in (("Ethan", 40, ids["<tts_bos>"]), ("Chelsie", 30, ids["<tts_pad>"]))
    }
    torch.save(voices, folder / "spk_dict.pt")
    model.load_speakers(str(folder / "spk_dict.pt"))
    model.save_pretrained(str(folder))
    save_processors(folder, "Qwen2_5OmniProcessor", 14)
    return model

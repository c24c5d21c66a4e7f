# SPDX-License-Identifier: Apache-2.0
"""The architectures: one row each, small enough that a step takes milliseconds on a CPU.

A row names a model of `transformers` by its configuration's type and the task's auto class. What
a family shares stands in a dictionary; a row adds what is its own. `inputs` names a function of
`inputs.py`, which makes the batch from the configuration.
"""

# data table
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model.

    Attributes:
        name: of the configuration class (`model_type`).
        family: the kind of architecture, for the report.
        task: the auto class without ``AutoModelFor``; empty for `AutoModel`.
        inputs: which batch it takes, a name in `inputs.py`.
        config: the configuration's fields.
    """

    name: str
    family: str
    task: str
    inputs: str
    config: Mapping[str, Any] = field(default_factory=dict)


TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
EXPERTS = {
    **GROUPED,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "output_router_logits": True,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
    "num_labels": 5,
}
STAGES = {
    "num_labels": 5,
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "mlp_ratio": 2.0,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 24,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "ctc_zero_infinity": True,
    "pad_token_id": 0,
}


def _rows(family: str, task: str, inputs: str, **configs: Mapping[str, Any]) -> list[Architecture]:
    """Rows that share all but the configuration."""
    return [
        Architecture(name=name, family=family, task=task, inputs=inputs, config=config)
        for name, config in configs.items()
    ]


ENCODERS = (
    _rows(
        "encoder",
        "SequenceClassification",
        "classified_text",
        bert=TEXT,
        roberta=TEXT,
        distilbert={"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        albert={**TEXT, "embedding_size": 16},
        electra={**TEXT, "embedding_size": 16},
        camembert=TEXT,
        funnel={
            "vocab_size": VOCAB,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
        },
        modernbert={**TEXT, "global_attn_every_n_layers": 2, "local_attention": 8},
        mpnet=TEXT,
        rembert={**TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
        squeezebert={**TEXT, "embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2},
        xlnet={"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    )
    + _rows(
        "encoder",
        "MaskedLM",
        "masked_text",
        deberta={**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        big_bird={**TEXT, "attention_type": "original_full"},
        convbert={**TEXT, "embedding_size": 32, "conv_kernel_size": 3},
        fnet=TEXT,
        longformer={**TEXT, "attention_window": 4},
        mobilebert={
            **TEXT,
            "embedding_size": 16,
            "intra_bottleneck_size": 16,
            "num_feedforward_networks": 2,
        },
        nystromformer={**TEXT, "num_landmarks": 12, "segment_means_seq_len": 12},
        roformer=TEXT,
        esm={**TEXT, "mask_token_id": 3, "position_embedding_type": "rotary"},
    )
    + [
        Architecture(
            name="deberta-v2",
            family="encoder",
            task="SequenceClassification",
            inputs="classified_text",
            config={
                **TEXT,
                "relative_attention": True,
                "position_buckets": 8,
                "norm_rel_ebd": "layer_norm",
                "share_att_key": True,
                "pos_att_type": ["c2p", "p2c"],
            },
        ),
    ]
)

DECODERS = _rows(
    "decoder",
    "CausalLM",
    "generated_text",
    gpt2=GPT2,
    gpt_bigcode=GPT2,
    gpt_neo={
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    gptj={**GPT2, "rotary_dim": 4},
    codegen={**GPT2, "rotary_dim": 4},
    gpt_neox=TEXT,
    opt={
        **TEXT,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
    bloom={"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    mpt={"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    llama=GROUPED,
    mistral={**GROUPED, "sliding_window": 6},
    qwen2=GROUPED,
    qwen3=GROUPED,
    gemma=GROUPED,
    gemma2={**GROUPED, "sliding_window": 6, "query_pre_attn_scalar": 8},
    gemma3_text={**GROUPED, "sliding_window": 6, "query_pre_attn_scalar": 8},
    phi={**TEXT, "partial_rotary_factor": 0.5},
    phi3=GROUPED,
    falcon={**TEXT, "new_decoder_architecture": False, "multi_query": True},
    olmo2=GROUPED,
    cohere=GROUPED,
    granite=GROUPED,
    stablelm=GROUPED,
    starcoder2=GROUPED,
    glm4=GROUPED,
    smollm3=GROUPED,
    biogpt=TEXT,
    xglm={
        "vocab_size": VOCAB,
        "d_model": 32,
        "num_layers": 2,
        "attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": 64,
    },
    reformer={
        **TEXT,
        "is_decoder": True,
        "attn_layers": ["local", "local"],
        "local_attn_chunk_length": 4,
        "local_num_chunks_before": 1,
        "feed_forward_size": 48,
        "attention_head_size": 8,
        "axial_pos_embds": False,
    },
)

MIXTURES = _rows(
    "mixture of experts",
    "CausalLM",
    "generated_text",
    mixtral=EXPERTS,
    qwen2_moe=EXPERTS,
    qwen3_moe=EXPERTS,
    olmoe=EXPERTS,
    gpt_oss={**EXPERTS, "sliding_window": 6},
    granitemoe=EXPERTS,
    deepseek_v3={
        **TEXT,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
)

STATE_SPACES = _rows(
    "state space, recurrent",
    "CausalLM",
    "generated_text",
    mamba={"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    mamba2={
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "chunk_size": 4,
    },
    rwkv={
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "attention_hidden_size": 32,
        "intermediate_size": 48,
        "context_length": 64,
    },
    recurrent_gemma={
        **GROUPED,
        "lru_width": 32,
        "num_hidden_layers": 3,
        "attention_window_size": 8,
    },
    jamba={
        **EXPERTS,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
)

ENCODER_DECODERS = _rows(
    "encoder-decoder",
    "Seq2SeqLM",
    "translated_text",
    t5=T5,
    mt5=T5,
    longt5={**T5, "local_radius": 3, "global_block_size": 4},
    bart=SEQ2SEQ,
    pegasus=SEQ2SEQ,
    marian=SEQ2SEQ,
    mbart=SEQ2SEQ,
    m2m_100=SEQ2SEQ,
    blenderbot=SEQ2SEQ,
    led={**SEQ2SEQ, "attention_window": 4},
    switch_transformers={
        **T5,
        "num_experts": 4,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "expert_capacity": 16,
        "router_jitter_noise": 0.0,
    },
)

SEEN = (
    _rows(
        "vision",
        "ImageClassification",
        "classified_images",
        vit=VISION,
        beit=VISION,
        dinov2=VISION,
        vit_msn=VISION,
        swin=STAGES,
        swinv2=STAGES,
        convnext={"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        convnextv2={"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        resnet={"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5},
        regnet={
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "groups_width": 8,
            "num_labels": 5,
        },
        mobilenet_v2={"depth_multiplier": 0.25, "image_size": 32, "num_labels": 5},
        efficientnet={
            "image_size": 32,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.1,
            "hidden_dim": 320,
            "num_labels": 5,
        },
        poolformer={
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1],
            "num_encoder_blocks": 2,
            "num_labels": 5,
        },
        pvt_v2={
            "image_size": 32,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 2],
            "num_labels": 5,
        },
    )
    + _rows(
        "vision",
        "SemanticSegmentation",
        "segmented_images",
        segformer={
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
            "num_labels": 5,
        },
    )
    + _rows(
        "vision",
        "ObjectDetection",
        "detected_objects",
        yolos={**VISION, "num_detection_tokens": 6, "image_size": [16, 16]},
        detr={
            **SEQ2SEQ,
            "num_queries": 6,
            "use_timm_backbone": False,
            "backbone": None,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16],
                "depths": [1, 1],
                "out_features": ["stage2"],
            },
            "num_labels": 5,
        },
    )
    + _rows(
        "vision",
        "DepthEstimation",
        "images_alone",
        dpt={
            **VISION,
            "num_hidden_layers": 4,
            "is_hybrid": False,
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 8,
            "backbone_out_indices": [0, 1, 2, 3],
        },
    )
    + _rows(
        "vision",
        "MaskGeneration",
        "pointed_images",
        sam={
            "vision_config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "mlp_dim": 48,
                "image_size": 32,
                "patch_size": 8,
                "output_channels": 16,
                "num_pos_feats": 8,
                "window_size": 2,
                "global_attn_indexes": [1],
            },
            "prompt_encoder_config": {
                "hidden_size": 16,
                "image_size": 32,
                "patch_size": 8,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 24,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
            },
        },
    )
)

HEARD = (
    _rows(
        "audio",
        "CTC",
        "transcribed_waves",
        wav2vec2=SPEECH,
        hubert=SPEECH,
        wavlm={**SPEECH, "num_buckets": 16, "max_bucket_distance": 32},
        sew={**SPEECH, "squeeze_factor": 2},
    )
    + _rows(
        "audio",
        "SpeechSeq2Seq",
        "transcribed_spectra",
        whisper={
            **SEQ2SEQ,
            "num_mel_bins": 16,
            "max_source_positions": 20,
            "max_target_positions": 32,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        speech_to_text={
            **SEQ2SEQ,
            "input_feat_per_channel": 16,
            "conv_channels": 16,
            "max_source_positions": 64,
            "max_target_positions": 32,
        },
    )
    + [
        Architecture(
            name="audio-spectrogram-transformer",
            family="audio",
            task="AudioClassification",
            inputs="classified_spectra",
            config={
                **VISION,
                "num_mel_bins": 16,
                "max_length": 40,
                "frequency_stride": 4,
                "time_stride": 4,
            },
        ),
    ]
)

PAIR = {
    "text_config": TEXT,
    "vision_config": VISION,
    "projection_dim": 16,
}
SEVERAL = (
    _rows(
        "multimodal",
        "",
        "paired",
        clip=PAIR,
        siglip=PAIR,
        blip=PAIR,
        chinese_clip=PAIR,
    )
    + _rows(
        "multimodal",
        "ImageTextToText",
        "images_in_text",
        llava={
            "text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **VISION},
            "image_token_id": 90,
            "vision_feature_layer": -1,
        },
        gemma3={
            "text_config": {**GROUPED, "sliding_window": 6, "query_pre_attn_scalar": 8},
            "vision_config": {"model_type": "siglip_vision_model", **VISION},
            "mm_tokens_per_image": 16,
            "image_token_id": 90,
            "boi_token_index": 91,
            "eoi_token_index": 92,
        },
    )
    + _rows(
        "multimodal",
        "VisualQuestionAnswering",
        "asked_images",
        vilt=VISION | TEXT,
    )
)

OTHERS = (
    _rows(
        "time series",
        "",
        "series",
        time_series_transformer={
            **SEQ2SEQ,
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
        },
        informer={
            **SEQ2SEQ,
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
        },
    )
    + _rows(
        "time series",
        "",
        "patched_series",
        patchtst={
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "num_input_channels": 2,
            "do_mask_input": False,
        },
    )
    + _rows(
        "any input",
        "MaskedLM",
        "bytes",
        perceiver={
            "vocab_size": VOCAB,
            "d_model": 16,
            "d_latents": 32,
            "num_latents": 8,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
            "max_position_embeddings": 12,
        },
    )
    + _rows(
        "decision",
        "",
        "trajectories",
        decision_transformer={
            **GPT2,
            "hidden_size": 32,
            "state_dim": 5,
            "act_dim": 3,
            "max_ep_len": 16,
        },
    )
)

ARCHITECTURES: tuple[Architecture, ...] = (
    *ENCODERS,
    *DECODERS,
    *MIXTURES,
    *STATE_SPACES,
    *ENCODER_DECODERS,
    *SEEN,
    *HEARD,
    *SEVERAL,
    *OTHERS,
)

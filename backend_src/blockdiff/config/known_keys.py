"""Names of configuration keys that this project knows without using them. Knows no family."""

# They change nothing in a forward pass over text: training, bookkeeping, other modalities, sizes
# of parts that a family lacks, remote code (never run).
HARMLESS = frozenset(
    """
    _name_or_path architectures attention_dropout audio_config audio_token_id auto_map
    boa_token_id boi_token_id bos_token_id chunk_size_feed_forward dtype embd_pdrop
    embedding_dropout eoa_token_id eoi_token_id fuse_cross_entropy full_attention_interval
    id2label image_token_id initializer_range intermediate_size is_encoder_decoder label2id
    language_model_only max_window_layers model_type moe_aux_loss_coef mtp_loss_scaling_factor
    mtp_num_hidden_layers mtp_use_dedicated_embeddings num_mtp_layers num_nextn_predict_layers
    output_attentions output_dropout output_hidden_states output_router_logits pad_token_id
    pretraining_tp problem_type resid_pdrop return_dict router_aux_loss_coef router_jitter_noise
    sep_token_id sliding_window torch_dtype transformers_version unsloth_version use_cache
    video_token_id vision_config vision_end_token_id vision_soft_tokens_per_image
    vision_start_token_id
    """.split()
)
# They change the computation of some family. A family that does not read one must not be given a
# value that asks for something.
MATHS = frozenset(
    """
    alibi attention_bias attention_multiplier attention_out_bias attention_sinks
    attn_logit_softcapping attn_output_gate bd_size canvas_length clip_qkv compression_config
    decoder_sparse_step delete_token_id embedding_multiplier expert_capacity expert_coreset
    final_logit_softcapping first_k_dense_replace hidden_size_per_layer_input kv_lora_rank
    layer_types linear_num_value_heads lm_head_bias logit_scale logits_scaling mamba_ssm_dtype
    mlp_bias mlp_only_layers moe_layer_freq moe_router_enable_expert_bias n_group
    n_routed_experts n_shared_experts norm_head num_experts num_kv_shared_layers
    num_shared_experts preview_formulation q_lora_rank quantization_config query_pre_attn_scalar
    residual_multiplier routed_scaling_factor router_dtype scale_embedding score_function
    scoring_func shared_expert_intermediate_size shift_logits split_token_id top_k_experts
    topk_group topk_method use_bias use_qkv_bias use_sliding_window
    """.split()
)

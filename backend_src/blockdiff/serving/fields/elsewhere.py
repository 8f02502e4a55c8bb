"""What other servers understand and this one does not: better refused than dropped."""

KNOWN_ELSEWHERE = frozenset(
    {
        "beam_width",
        "best_of",
        "diffusion_block_length",
        "diffusion_steps",
        "diffusion_threshold",
        "early_stopping",
        "end_id",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "length_penalty",
        "logprobs",
        "lora_name",
        "lora_task_id",
        "n",
        "num_return_sequences",
        "pad_id",
        "request_output_len",
        "response_format",
        "runtime_top_k",
        "runtime_top_p",
        "stop",
        "structured_outputs",
        "typical_p",
        "use_beam_search",
    }
)

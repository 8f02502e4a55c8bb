"""A small byte-level tokenizer with a chat template, built without a checkpoint."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif enable_thinking is defined %}<think>
{% endif %}"""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def build_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json, chat_template.jinja and config.json."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(["sort the words hello world 你好 " * 3] * 8, trainer)
    tokenizer.add_tokens(
        [tokenizers.AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    ids = {"eos_token_id": tokenizer.token_to_id("<|im_end|>")}
    (folder / "config.json").write_text(json.dumps(ids), encoding="utf-8")

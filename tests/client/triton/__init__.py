"""A model repository for the real server that lets a test script what the server says.

The Python files are models, loaded by the server's Python backend, not by the tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_INPUTS = {
    "text_input": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "return_num_input_tokens": "TYPE_BOOL",
    "return_num_output_tokens": "TYPE_BOOL",
}
_OUTPUTS = {
    "text_output": "TYPE_STRING",
    "block_index": "TYPE_INT32",
    "denoise_steps_used": "TYPE_INT32",
    "num_output_tokens": "TYPE_INT32",
    "is_final": "TYPE_BOOL",
    "finish_reason": "TYPE_STRING",
}


def _tensors(kind: str, types: dict[str, str], prefix: str = "") -> str:
    return "".join(
        f'{kind} {{ name: "{prefix}{name}" data_type: {datatype} dims: [ 1 ] }}\n'
        for name, datatype in types.items()
    )


def _maps(kind: str, types: dict[str, str], left: str = "", right: str = "") -> str:
    return "".join(f'{kind} {{ key: "{left}{name}" value: "{right}{name}" }}\n' for name in types)


def write_repository(folder: Path) -> Path:
    """Models `scripted`, `queued` (the same, queue of one), `relay`, and `ensemble` over them."""
    python = 'backend: "python"\nmax_batch_size: 1\ninstance_group { kind: KIND_CPU count: 1 }\n'
    public = _tensors("input", _INPUTS) + _tensors("output", _OUTPUTS)
    decoupled = python + "model_transaction_policy { decoupled: true }\n" + public
    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
    limits = 'parameters { key: "max_context" value { string_value: "512" } }\n'
    steps = (
        'step { model_name: "scripted" model_version: -1\n'
        + _maps("input_map", _INPUTS)
        + _maps("output_map", _OUTPUTS, right="raw_")
        + '}\nstep { model_name: "relay" model_version: -1\n'
        + _maps("input_map", _OUTPUTS, "in_", "raw_")
        + _maps("output_map", _OUTPUTS)
        + "}\n"
    )
    relay = python + _tensors("input", _OUTPUTS, "in_") + _tensors("output", _OUTPUTS)
    configs = {
        "scripted": decoupled,
        "queued": decoupled + queue + limits,
        "relay": relay,
        "ensemble": f'platform: "ensemble"\nmax_batch_size: 1\n{public}'
        f"ensemble_scheduling {{\n{steps}}}\n",
    }
    sources = {"scripted": "scripted.py", "queued": "scripted.py", "relay": "relay.py"}
    for name, config in configs.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if name in sources:
            shutil.copy(Path(__file__).with_name(sources[name]), version / "model.py")
    return folder

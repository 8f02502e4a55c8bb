"""What a folder can have wrong besides its tensors: family, index, pickles, code, tokenizer."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockdiff.checkpoint import load_model, load_with_report
from blockdiff.cli.main import run as run_command
from blockdiff.config import load_config, parse_config
from blockdiff.errors import ConfigError
from blockdiff.serving.block_diffusion import build_engine
from blockdiff.serving.settings import Settings
from blockdiff.text import Tokenizer
from blockdiff.text.fit import require_fit
from tests.engine.checkpoint import make_checkpoint

from .checkpoints import TINY, random_tensors, write
from .test_config_attention import CONFIGS


def test_config_of_another_family_than_the_tensors(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), CONFIGS["llada2_moe"])
    with pytest.raises(ConfigError) as caught:
        load_model(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert "word_embeddings.weight is missing" in line
    assert "model.layers.{0-2}.linear_attn.A_log is unexpected (3 tensors)" in line


def test_index_that_names_a_tensor_its_shard_lacks(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), shards=2)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    own = weight_map["model.norm.weight"]
    other = "part-1.safetensors" if own == "part-0.safetensors" else "part-0.safetensors"
    weight_map |= {"model.norm.weight": other, "model.layers.1.extra": own}
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError) as caught:
        load_model(folder)
    said = "where model.safetensors.index.json says it is"
    assert f"model.norm.weight is not in {other}, {said}" in str(caught.value)
    assert f"model.layers.1.extra is not in {own}, {said}" in str(caught.value)


def test_swapped_shards(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), shards=2)
    first, second = folder / "part-0.safetensors", folder / "part-1.safetensors"
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    with pytest.raises(
        ConfigError, match="is not in part-0.safetensors, where .* is not in part-1"
    ):
        load_model(folder)


class Exploding:
    """Leaves a trace when its pickle is opened."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", random_tensors(TINY))
    (folder / "model.safetensors").unlink()
    trace = tmp_path / "trace"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploding(trace)))
    with pytest.raises(ConfigError, match=r"only pickle files \(pytorch_model.bin\).*safetensors"):
        load_model(folder)
    assert not trace.exists()


def test_remote_code_is_never_run_and_said(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    config = {**TINY, "auto_map": {"AutoModel": "modeling.Model"}, "surprise": 1}
    folder = write(tmp_path / "m", random_tensors(TINY), config)
    (folder / "modeling.py").write_text(f"open({str(trace)!r}, 'w')")
    notes = load_with_report(folder).notes
    assert not trace.exists()
    assert any("auto_map names remote code, which is never run" in note for note in notes)
    assert "config.json: keys not used: surprise" in notes


@pytest.mark.parametrize("size", [0, 4097, "8"])
def test_block_size_of_the_config(size: object) -> None:
    for config in (TINY, *CONFIGS.values()):
        folder_config = {**config, "block_size": size}
        with pytest.raises(ConfigError, match=r"block_size is .* an integer from 1 to 4096"):
            parse_config(folder_config)


@pytest.fixture
def served(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "served")


def name_tokens(folder: Path, file: str = "tokenizer_config.json", **roles: object) -> None:
    (folder / file).write_text(json.dumps(roles))


def change_config(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def fit(folder: Path) -> None:
    require_fit(Tokenizer.load(folder), folder, load_config(folder))


def test_a_token_id_beyond_the_embedding_is_refused_everywhere(
    served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(served)
    path = served / "tokenizer.json"
    definition = json.loads(path.read_text())
    rows = load_config(served).vocab_size
    definition["model"]["vocab"]["surplus"] = rows + 6
    path.write_text(json.dumps(definition))
    said = f"largest token id is {rows + 6}, but the model's vocab_size is {rows}"
    with pytest.raises(ConfigError, match=said):
        fit(served)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a", "expected": "b"}\n')
    for command in (
        ["generate", "--prompt", "x"],
        ["serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
        ["eval", "--prompts", str(prompts)],
    ):
        assert run_command([*command, "--model", str(served)]) == 2
        assert said in capsys.readouterr().err
    assert run_command(["doctor", "--model", str(served)]) == 1
    assert said in capsys.readouterr().out
    with pytest.raises(ConfigError, match=said):
        build_engine(Settings(served, tmp_path / "relay.sock"))


def test_spare_rows_are_fine(served: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.zeros(1)}
    save_file(tensors, str(served / "model.safetensors"))
    change_config(served, vocab_size=4096)
    fit(served)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_that_disagree(served: Path, file: str) -> None:
    config, tokenizer = load_config(served), Tokenizer.load(served)
    mask = config.mask_token_id
    assert mask is not None
    name_tokens(served, file, mask_token="A")
    with pytest.raises(
        ConfigError, match=rf"{file}: mask_token 'A' has id 33, .*mask_token_id {mask}"
    ):
        fit(served)
    mask_text = tokenizer.decode([mask], skip_special=False)
    name_tokens(served, file, mask_token={"content": mask_text}, eos_token="not a token")
    fit(served)
    name_tokens(served, file, eos_token=mask_text)
    with pytest.raises(ConfigError, match=rf"eos_token .* has id {mask}, .* as mask_token_id"):
        fit(served)


def test_a_mask_that_is_an_end_token(served: Path) -> None:
    config = load_config(served)
    change_config(served, eos_token_id=[config.mask_token_id])
    (served / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="mask_token_id .* is an eos_token_id too"):
        fit(served)

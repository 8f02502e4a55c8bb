"""The installer's versions: pinned, but for the triton that a CUDA build of torch brings."""

from pathlib import Path

import pytest

from scripts import install_environment as installer


@pytest.mark.parametrize("own_triton", [False, True])
def test_triton_of_torch_stays(
    own_triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def pip(*arguments: str) -> str:
        if "--constraint" in arguments:
            used.append(Path(arguments[arguments.index("--constraint") + 1]).read_text())
        return '{"install": []}'

    monkeypatch.setattr(installer, "VENV", tmp_path)
    monkeypatch.setattr(installer, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(installer.venv.EnvBuilder, "create", lambda self, path: None)
    monkeypatch.setattr(installer, "pip", pip)
    monkeypatch.setattr(installer, "fetch_server", lambda: None)
    monkeypatch.setattr(installer, "has_package", lambda name: own_triton)
    installer.install()
    pins = ["\ntriton==" in constraints for constraints in used]
    assert pins == [False, not own_triton, not own_triton]
    assert all("\ntritonclient==" in constraints for constraints in used)

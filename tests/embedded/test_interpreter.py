"""Finding libpython for every kind of Python, and saying what to do where there is none."""

import os
import sys
from pathlib import Path

import pytest

import blockdiff
from blockdiff.embedded import debian, interpreter
from blockdiff.errors import ConfigError


@pytest.fixture
def no_library(monkeypatch, tmp_path):
    """An interpreter whose folders hold no shared library."""
    monkeypatch.setattr(interpreter, "library_folders", lambda: [tmp_path / "lib"])
    return tmp_path


def test_this_interpreter_has_one():
    found = interpreter.find_libpython()
    assert found.path.name == interpreter.LIBRARY_NAME
    assert found.path.exists()


def test_library_beside_the_interpreter_is_taken_first(no_library):
    (no_library / "lib").mkdir()
    (no_library / "lib" / interpreter.LIBRARY_NAME).touch()
    assert interpreter.find_libpython().source == "interpreter"


def test_system_python_fetches_the_package(no_library, monkeypatch, tmp_path):
    library = tmp_path / "deb" / "usr" / "lib" / interpreter.LIBRARY_NAME
    library.parent.mkdir(parents=True)
    library.touch()
    asked: list[str] = []

    def fetch(package: str) -> Path:
        asked.append(package)
        return tmp_path / "deb"

    monkeypatch.setattr(interpreter, "is_system_python", lambda: True)
    monkeypatch.setattr(interpreter, "fetch_package", fetch)
    monkeypatch.setattr(interpreter, "cached_package", lambda package: None)
    found = interpreter.find_libpython()
    assert found.path == library
    monkeypatch.setattr(interpreter, "cached_package", lambda package: tmp_path / "deb")
    assert interpreter.find_libpython(fetch=False).path == library
    assert asked == [f"libpython{sys.version_info[0]}.{sys.version_info[1]}"]


def test_system_python_without_apt_names_the_package(no_library, monkeypatch):
    monkeypatch.setattr(interpreter, "is_system_python", lambda: True)
    monkeypatch.setattr(interpreter, "cached_package", lambda package: None)
    monkeypatch.setattr(interpreter, "fetch_package", lambda package: None)
    with pytest.raises(ConfigError, match=f"apt-get install {interpreter.PACKAGE}"):
        interpreter.find_libpython()


@pytest.mark.parametrize(
    ("prefix", "advice"),
    [
        ("/home/u/.pyenv/versions/3.11.7", "PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install"),
        ("/opt/python", "use a Python built with --enable-shared"),
    ],
)
def test_static_builds_get_their_own_advice(no_library, monkeypatch, prefix, advice):
    monkeypatch.setattr(sys, "base_prefix", prefix)
    with pytest.raises(ConfigError) as caught:
        interpreter.find_libpython()
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


def test_conda_library_in_the_prefix_is_found(monkeypatch, tmp_path):
    # conda's interpreter is linked statically but brings the shared library too
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / interpreter.LIBRARY_NAME).touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(interpreter.sysconfig, "get_config_var", lambda name: None)
    assert interpreter.find_libpython().path.parent == tmp_path / "lib"


def test_unsupported_version_is_refused(monkeypatch):
    monkeypatch.setattr(interpreter, "VERSION", "3.9")
    with pytest.raises(ConfigError, match=r"3\.10, 3\.11, 3\.12"):
        interpreter.find_libpython()


def test_models_get_this_environment():
    environment = interpreter.python_environment()
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    paths = environment["PYTHONPATH"].split(os.pathsep)
    assert str(Path(blockdiff.__file__).parents[1]) in paths
    assert any(path.endswith("site-packages") for path in paths)


def test_package_that_apt_does_not_have_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKDIFF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(debian, "can_fetch", lambda: True)
    monkeypatch.setattr(debian, "_run", lambda command, folder=None: False)
    assert debian.fetch_package("libnothing") is None
    assert not (tmp_path / "deb" / "libnothing").exists()


def test_stale_package_lists_are_renewed_in_private(monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKDIFF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(debian, "can_fetch", lambda: True)
    commands: list[list[str]] = []

    def run(command: list[str], folder: Path | None = None) -> bool:
        commands.append(command)
        if command[0] == "apt-get" and len(command) > 3 and "download" in command:
            assert folder is not None
            (folder / "libx_1.0_amd64.deb").touch()
        if command[0] == "dpkg":
            Path(command[3]).mkdir()
        return command != ["apt-get", "download", "libx"]

    monkeypatch.setattr(debian, "_run", run)
    assert debian.fetch_package("libx") == tmp_path / "deb" / "libx"
    assert [command[0] for command in commands] == ["apt-get", "apt-get", "apt-get", "dpkg"]
    assert any(word.startswith("-oDir::State::lists=") for word in commands[1])

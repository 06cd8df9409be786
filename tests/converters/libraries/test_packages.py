"""Importing model files without their packages, in processes of their own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from weighbridge.cli import main
from weighbridge.converters.libraries import packages
from weighbridge.converters.libraries.packages import module
from weighbridge.errors import UnsupportedError


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_file_comes_without_its_package():
    code = """
        import sys
        from weighbridge.converters.libraries.packages import module
        model = module("mlx_lm.models.llama").Model
        heavy = {"mlx_lm.utils", "mlx_lm.generate", "transformers", "torch"}
        print(model.__name__, heavy & set(sys.modules))
    """
    assert run(code) == "Model set()"


@pytest.mark.heavy
def test_the_package_still_imports_and_works_afterwards():
    code = """
        import sys
        from weighbridge.converters.libraries.packages import module
        before = module("mlx_lm.models.llama")
        import mlx_lm
        from mlx_lm import generate
        import mlx_lm.models.llama as after
        from mlx_lm.utils import _get_classes
        assert callable(mlx_lm.load) and mlx_lm.__version__
        assert type(mlx_lm).__name__ == "module"
        assert _get_classes({"model_type": "llama"})[0] is before.Model is after.Model
        print("works")
    """
    assert run(code) == "works"


@pytest.mark.heavy
def test_a_model_file_that_needs_its_package_s_own_order_gets_it():
    code = """
        from weighbridge.converters.libraries.packages import module
        print(module("mlx_vlm.models.diffusion_gemma").Model.__name__)
    """
    assert run(code) == "Model"


@pytest.mark.heavy
def test_a_package_that_is_imported_already_is_used_as_it_is():
    code = """
        import mlx_lm, mlx_lm.models.llama
        from weighbridge.converters.libraries.packages import module
        assert module("mlx_lm.models.llama") is mlx_lm.models.llama
        assert type(mlx_lm).__name__ == "module"
        print("same")
    """
    assert run(code) == "same"


def test_a_package_runs_in_place_when_it_is_asked_for_more(tmp_path, monkeypatch):
    folder = tmp_path / "weighty"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .models import light\nloaded = light.name\n")
    (folder / "models" / "__init__.py").write_text("")
    (folder / "models" / "light.py").write_text("name = 'light'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(packages.PACKAGES, "weighty", "weighty")
    light = module("weighty.models.light")
    package = importlib.import_module("weighty")
    assert type(package) is packages.Unexecuted
    assert package.loaded == "light"
    assert type(package).__name__ == "module"
    assert package.models.light is light


def test_a_package_that_fails_says_so_and_can_be_asked_again(tmp_path, monkeypatch):
    (tmp_path / "failing").mkdir()
    (tmp_path / "failing" / "__init__.py").write_text("import not_there_at_all\n")
    (tmp_path / "failing" / "part.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(packages.PACKAGES, "failing", "failing")
    assert module("failing.part").value == 3
    for _ in range(2):
        with pytest.raises(ImportError, match="not_there_at_all"):
            _ = sys.modules["failing"].load


def test_looking_around_in_sys_modules_executes_nothing():
    code = """
        import inspect, sys, warnings
        from weighbridge.converters.libraries.packages import module
        module("mlx_lm.models.llama")
        inspect.stack()
        [getattr(m, "__warningregistry__", None) for m in list(sys.modules.values())]
        [hasattr(m, "__wrapped__") for m in list(sys.modules.values())]
        print("mlx_lm.utils" in sys.modules)
    """
    assert run(code) == "False"


@pytest.mark.parametrize(
    "name",
    [
        "mlx_embeddings.models.modernbert",
        pytest.param("mlx_vlm.models.idefics3", marks=pytest.mark.heavy),  # imports transformers
    ],
)
def test_libraries_whose_packages_need_more_give_their_model_files(name):
    code = f"""
        from weighbridge.converters.libraries.packages import module
        print(module({name!r}).Model.__name__)
    """
    assert run(code) == "Model"


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UnsupportedError, match="cv2"):
        module("mlx_vlm.models.multi_modality")


def test_a_file_that_ends_the_process_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "hf_olmo", None)
    with pytest.raises(UnsupportedError, match=r"mlx_lm\.models\.olmo"):
        module("mlx_lm.models.olmo")


@pytest.fixture
def installed(monkeypatch):
    """Return what lets every library have the version that it is given."""

    def have(version):
        monkeypatch.setattr(packages, "installed_version", lambda _: version)
        packages.version.cache_clear()

    yield have
    packages.version.cache_clear()


@pytest.mark.parametrize("library", packages.LEAST)
def test_a_library_that_is_too_old_is_one_line_that_says_what_to_install(
    library, installed, tmp_path
):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    save_file({"norm.weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    installed("0.0.9")
    words = ("convert", "torch-to-mlx", str(tmp_path), str(tmp_path / "out"), "--library", library)
    found = CliRunner().invoke(main, words)
    least = ".".join(map(str, packages.LEAST[library]))
    assert found.exit_code == 3
    assert f"{library} 0.0.9 is too old: pip install '{library}>={least}'" in found.output
    assert "Traceback" not in found.output


def test_the_oldest_version_and_newer_ones_are_taken(installed):
    for library, least in packages.LEAST.items():
        for told in (
            f"{least[0]}.{least[1]}",
            f"{least[0]}.{least[1] + 9}.dev1",
            f"{least[0] + 1}.0",
        ):
            installed(told)
            assert packages.version(library) == told


def test_the_oldest_version_is_the_one_that_is_asked_for():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    least = ".".join(map(str, packages.LEAST["mlx-lm"]))
    assert f"mlx-lm>={least}" in project["optional-dependencies"]["lm"]

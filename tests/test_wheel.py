"""The wheel that `pip install kernel-coder` installs: complete, and usable outside the source tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # pip builds the core again

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder), "."]
    # Without the CUDA library: nvcc takes minutes, and `make cuda` builds that library where nvcc is.
    without_cuda = {**os.environ, "KC_CUDA": "OFF"}
    built = subprocess.run(command, cwd=ROOT, env=without_cuda, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    (path,) = folder.glob("kernel_coder-*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_the_core_and_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "kernel_coder/libkernel_coder_ops.so" in names
    assert any(name.startswith("kernel_coder/_C.") and name.endswith(".so") for name in names)
    package = ROOT / "python"
    tracked = subprocess.run(["git", "ls-files", "python"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in tracked.split():
        assert str((ROOT / path).relative_to(package)) in names, f"{path} is not in the wheel"
    for path in (ROOT / "configs").glob("*.[yj]*"):
        assert f"kernel_coder/recipes/{path.name}" in names, f"{path} is not in the wheel"


@pytest.mark.slow
def test_the_description_of_the_wheel_has_absolute_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    head, _, description = text.partition("\n\n")
    assert "Project-URL: Source, https://" in head
    assert "Description-Content-Type: text/markdown" in head
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


@pytest.mark.slow
def test_wheel_works_outside_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # -S: no .pth file is read, so an editable install of the source tree does not come first.
    libraries = sysconfig.get_path("purelib")
    code = (
        f"import sys; sys.path[:0] = [{str(site)!r}, {libraries!r}]; import kernel_coder as kc, torch\n"
        f"assert kc.__file__.startswith({str(site)!r}), kc.__file__\n"
        "print(kc.ops.group_advantages(torch.tensor([0.0, 1.0]), 2, mode='dr_grpo').tolist())"
    )
    run = subprocess.run([sys.executable, "-IS", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[-0.5, 0.5]", run.stderr[-2000:]

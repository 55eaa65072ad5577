"""Providers that the image lacks: the chart's init container installs them, and the hub's container imports them."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.api import Object
from tests.support.helm import CHART, EXAMPLES, Helm, find
from tests.unit.observe.providers.plugins import GOOD

pytestmark = pytest.mark.apiserver  # tests of helm, which is built where the API servers are
PROJECT = "acme-hub-provider"
BUNDLED = Path(ensurepip.__file__).parent / "_bundled"
"""Folder of the wheel that ``python -m venv`` installs pip from."""


class Image:
    """A virtual environment with the packages of the image; pip is a wheel in the volume.

    Args:
        folder: for the environment, the wheels and the volume of the installed packages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "image" / "bin" / "python"
        self.wheels = folder / "wheels"
        for subfolder in (self.wheels, folder / "providers"):
            subfolder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "image")], check=True)
        [pip] = BUNDLED.glob("pip-*.whl")
        shutil.copy(pip, self.wheels)
        [site] = (folder / "image").glob("lib/python*/site-packages")
        (site / "ours.pth").write_text("\n".join([sysconfig.get_path("purelib"), str(CHART.parents[1])]))
        helm = Helm(folder)
        [example] = [file for file in EXAMPLES if file.stem == "providers"]
        self._pod: Object = find(helm.template(example), "Deployment")["spec"]["template"]["spec"]

    def install(self) -> subprocess.CompletedProcess[str]:
        """Run the init container's command."""
        [container] = self._pod["initContainers"]
        return self._run([*container["command"], *container["args"]])

    def hub(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the hub's container with other arguments."""
        [container] = self._pod["containers"]
        return self._run([*container["command"], *arguments])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[0] == "python"
        ours = {"/wheels": str(self.wheels), "/providers": str(self._folder / "providers")}
        words = [str(self._python), *command[1:]]
        for theirs, here in ours.items():
            words = [here if word == theirs else word.replace(f'"{theirs}/', f'"{here}/') for word in words]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "VIRTUAL_"))}
        return subprocess.run(words, env=clean, capture_output=True, text=True, timeout=120, check=False)


def wheel(folder: Path, project: str, files: Mapping[str, str], *requires: str, release: str = "1.2.0") -> None:
    """Write a wheel, which is a zip file, without a build backend."""
    name = project.replace("-", "_")
    info = f"{name}-{release}.dist-info"
    lines = [f"Name: {project}", f"Version: {release}", *(f"Requires-Dist: {requirement}" for requirement in requires)]
    content = {
        **files,
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *lines, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[hub.providers]\nacme = {name}\n" if project == PROJECT else "",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{release}-py3-none-any.whl", "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)


SOURCE = f"import acme_more\nNAME = 'acme'\n{GOOD}"


def test_wheels_are_installed_in_the_volume(tmp_path: Path) -> None:
    """A provider and its dependencies come from the volume, and replace no module of the image."""
    image = Image(tmp_path)
    shadow = {"acme_more.py": "", "yaml.py": "raise SystemExit('not the one of the image')\n"}
    wheel(image.wheels, "acme-more", shadow, release="3.0")
    wheel(image.wheels, PROJECT, {"acme_hub_provider.py": SOURCE}, "acme-more>=3", "pydantic>=2", "endpointslice-hub")
    for _ in range(2):  # a Pod may run its init containers again on the same volume
        done = image.install()
        assert done.returncode == 0, done.stdout + done.stderr
    found = image.hub("providers")
    assert found.returncode == 0, found.stdout + found.stderr
    assert PROJECT in found.stdout
    assert "1.2.0" in found.stdout
    registry = tmp_path / "clusters.yaml"
    registry.write_text(
        "version: 1\nclusters:\n"
        "- {name: a, kubeconfig: {path: a}, allowedCIDRs: [10.0.0.0/8], provider: {name: acme}}\n"
    )
    checked = image.hub("check", str(registry))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (f"pydantic!={version('pydantic')}", "conflicting dependencies"),
        ("nobody-has-this", "No matching distribution found for nobody-has-this"),
    ],
)
def test_wheels_that_do_not_fit_the_image_are_refused(tmp_path: Path, requires: str, said: str) -> None:
    """A wheel that needs a missing package, or another version of one in the image, is refused with the reason."""
    image = Image(tmp_path)
    wheel(image.wheels, PROJECT, {"acme_hub_provider.py": SOURCE}, requires)
    wheel(image.wheels, "pydantic", {"pydantic.py": ""}, release="99.0")
    done = image.install()
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert f"{PROJECT}==1.2.0 need wheels in the volume that fit the image" in done.stderr


def test_missing_pip_names_the_next_step(tmp_path: Path) -> None:
    """Without pip in the volume, the error says that it can be added there."""
    image = Image(tmp_path)
    for pip in image.wheels.glob("pip-*.whl"):
        pip.unlink()
    [borrowed] = (tmp_path / "image").glob("lib/python*/site-packages/ours.pth")
    borrowed.unlink()  # this environment may have pip
    done = image.install()
    assert done.returncode == 1
    assert "add it to the volume (pip download pip)" in done.stderr

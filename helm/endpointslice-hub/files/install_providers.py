"""Installs wheels of further providers from a folder, in an init container of the hub's own image.

    python -c "$(cat install_providers.py)" WHEELS TARGET REQUIREMENT…

pip uses no index, and the packages of the image are constraints, so they cannot change. The wheels are installed into
TARGET/site-packages. The hub appends this folder to its path, so that no wheel can replace a module of the image.
The hub's image has no pip: pip itself is one of the wheels.
"""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import sysconfig

wheels, target, *requirements = sys.argv[1:]
found = sorted(pathlib.Path(wheels).glob("pip-*.whl"))
if not found and importlib.util.find_spec("pip") is None:
    sys.exit(
        "this image has no pip: add it to the volume (pip download pip), or build an image with the provider in it"
        " (docs/how-to/helm.md)"
    )
# Python runs a package in a wheel by its path.
pip = [str(found[-1] / "pip")] if found else ["-m", "pip"]
constraints = pathlib.Path(target, "constraints.txt")
present = {f"{each.metadata['Name']}=={each.version}" for each in importlib.metadata.distributions()}
constraints.write_text("\n".join(sorted(present)))
command = [sys.executable, *pip, "install", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
command += ["--find-links", wheels, "--constraint", str(constraints), "--prefix", target, *requirements]
if code := subprocess.run(command, check=False).returncode:  # noqa: S603 - pip, and what the Deployment says
    sys.exit(
        f"not installed, see above: {' '.join(requirements)} need wheels in the volume that fit the image (exit {code})"
    )
installed = sysconfig.get_path("purelib", vars={"base": target, "platbase": target})
pathlib.Path(installed).mkdir(parents=True, exist_ok=True)
link = pathlib.Path(target, "site-packages")
link.unlink(missing_ok=True)
link.symlink_to(pathlib.Path(installed).relative_to(target))

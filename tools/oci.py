"""Builds the image as an OCI archive, without a container engine: ``make image``.

The image has two layers: Debian's python3.11 with the libraries that it needs, and what ``tools/image.py`` installs. It
contains no shell, no package manager, no pip and no compiler. mmdebstrap fetches and extracts the Debian packages, and
umoci makes an image of the layers. Both are Debian packages, and need root or user namespaces.

The same commit and the same Debian packages give the same digest: files are in order, owned by root and as old as the
commit (or SOURCE_DATE_EPOCH), and bytecode contains no times. Standard library only.
"""

from __future__ import annotations

import compileall
import csv
import io
import json
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import image

ROOT: Final = Path(__file__).resolve().parents[1]
NEEDS: Final = ("mmdebstrap", "umoci")
SUITE: Final = "bookworm"
PACKAGES: Final = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6", "ca-certificates", "tzdata", "netbase")
PYTHON: Final = "usr/bin/python3.11"
CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"
HOME: Final = "opt/hub"
COMMANDS: Final = ("hub", "endpointslice-hub")
USER: Final = "65532:65532"
"""The user of the Dockerfile and the chart: it has no account, and owns no file."""

KEPT: Final = re.compile(
    rf"(lib|lib64|usr/lib)/|{PYTHON}$|usr/share/(zoneinfo|ca-certificates)/|usr/share/doc/[^/]+/copyright$"
    r"|etc/(ssl/(openssl\.cnf$|certs/)|protocols$|services$)|var/lib/dpkg/status\.d/"
)
"""Of the extracted Debian packages. Their other programs are maintainer scripts' tools, which nothing here runs."""
DROPPED: Final = re.compile(
    r"usr/lib/(x86_64|aarch64)-linux-gnu/(gconv|perl-base|engines-3)/|usr/lib/python3\.11/(test|pydoc_data|ensurepip|idlelib)/"
    r"|usr/lib/(apt|dpkg|systemd)/|lib/systemd/|usr/share/zoneinfo/(posix|right)/|.*/__pycache__/"
)
STATUS: Final = (
    'mkdir -p "$1/var/lib/dpkg/status.d"; for deb in "$1"/var/cache/apt/archives/*.deb; do'
    ' dpkg-deb --field "$deb" > "$1/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"; done'
)
"""Run by mmdebstrap where the packages are: their names and versions in the place where scanners of images look."""


def main(arguments: Sequence[str]) -> int:
    """Build the archive that is named; the exit code is that of the first command that fails."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tools/oci.py ARCHIVE\n")
        return 2
    if missing := [name for name in NEEDS if shutil.which(name) is None]:
        sys.stderr.write(f"{' and '.join(missing)} not found; on Debian: apt-get install {' '.join(NEEDS)}\n")
        return 1
    archive = Path(arguments[0]).resolve()
    archive.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="oci-") as folder:
            build(Path(folder), archive)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


def build(work: Path, archive: Path) -> None:
    """Build in ``work``, write ``archive``, and print its digest and sizes."""
    epoch = commit_time()
    layers = [debian_layer(work, epoch), hub_layer(work, epoch)]
    layout = work / "layout"
    digest = assemble(layout, layers, epoch)
    partial = archive.with_suffix(".partial")
    write_layer(partial, entries(layout), epoch)
    partial.replace(archive)
    sizes = ", ".join(f"{blob.stat().st_size / 1e6:.1f} MB" for blob in blobs(layout))
    sys.stderr.write(
        f"{archive.name}: {digest}, layers {sizes} compressed, {archive.stat().st_size / 1e6:.1f} MB in all\n"
    )


def commit_time() -> int:
    """Unix time of the commit; SOURCE_DATE_EPOCH wins, and decides where there is no repository."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)  # noqa: S603


# --- layers ------------------------------------------------------------------------------------------


def debian_layer(work: Path, epoch: int) -> Path:
    """The layer with Python, its libraries and the authorities that Debian trusts."""
    extracted, root = work / "debian.tar", work / "debian"
    image.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            f"--include={','.join(PACKAGES)}",
            f"--extract-hook={STATUS}",
            SUITE,
            str(extracted),
            *sources(),
        ]
    )
    with tarfile.open(extracted) as packages:
        packages.extractall(root, members=kept(packages), filter="tar")
    for folder in ("dev", "proc", "sys", "tmp", "etc"):
        (root / folder).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    trusted = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / CERTIFICATES
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(file.read_bytes() for file in trusted))
    (root / "etc/passwd").write_text(f"hub:x:{USER}:EndpointSlice Hub:/:/sbin/nologin\n")
    (root / "etc/group").write_text("hub:x:65532:\n")
    compile_folder(root / "usr/lib/python3.11", root)
    return write_layer(work / "debian-layer.tar", entries(root), epoch)


def sources() -> list[str]:
    """Where apt of this machine finds packages; none of it gets into the image."""
    lists = Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))
    return [str(file) for file in lists if file.is_file() and file.suffix in (".list", ".sources")]


def kept(packages: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The entries that the image needs."""
    for entry in packages:
        path = entry.name.removeprefix("./")
        if not entry.isdir() and KEPT.match(path) and not DROPPED.match(path):
            yield entry


def hub_layer(work: Path, epoch: int) -> Path:
    """The layer with the hub, its providers and what they depend on, in the place of the Dockerfile's."""
    root = work / "hub"
    environment = root / HOME
    environment.parent.mkdir(parents=True)
    built = work / "environment"
    image.install(work / "build", built)
    environment.mkdir()
    shutil.copytree(built / "lib", environment / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(built / "constraints.txt", environment)
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    commands = environment / "bin"
    commands.mkdir()
    for name in ("python", "python3"):
        (commands / name).symlink_to(f"/{PYTHON}")
    for name in COMMANDS:
        script = commands / name
        script.write_text(f"#!/{HOME}/bin/python\nimport sys\n\nfrom hub.cli import main\n\nsys.exit(main())\n")
        script.chmod(0o755)
    [site] = environment.glob("lib/python*/site-packages")
    forget_scripts(site)
    compile_folder(environment / "lib", root)
    return write_layer(work / "hub-layer.tar", entries(root), epoch)


def forget_scripts(site: Path) -> None:
    """Take out of the packages' records what is not in the image: scripts and bytecode."""
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(newline="") as file:
            rows = [row for row in csv.reader(file) if not row[0].startswith("../") and "__pycache__" not in row[0]]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(sorted(rows))
        record.write_text(text.getvalue())


def compile_folder(folder: Path, root: Path) -> None:
    """Compile a folder of ``root`` for its place in the image, where no start can write bytecode."""
    compileall.compile_dir(
        folder,
        maxlevels=99,
        quiet=1,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def entries(root: Path) -> list[tuple[str, Path]]:
    """What is below a folder, as (path in an archive, file), in order."""
    found = sorted(root.rglob("*"))
    return [(str(file.relative_to(root)), file) for file in found]


def write_layer(path: Path, files: Iterable[tuple[str, Path]], epoch: int) -> Path:
    """Write files of root, all of the same age, into an uncompressed archive."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in files:
            entry = archive.gettarinfo(file, name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            if entry.isfile():
                entry.mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
                with file.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                if entry.isdir() and name != "tmp":
                    entry.mode = 0o755
                archive.addfile(entry)
    return path


# --- the image -----------------------------------------------------------------------------------------


def assemble(layout: Path, layers: Sequence[Path], epoch: int) -> str:
    """Make an OCI layout of the layers; the digest of its manifest."""
    version = version_of()
    made = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tag = f"{layout}:{version}"
    umoci("init", "--layout", str(layout))
    umoci("new", "--image", tag)
    for layer in layers:
        umoci(
            "raw",
            "add-layer",
            "--image",
            tag,
            "--history.created",
            made,
            "--history.created_by",
            layer.stem,
            str(layer),
        )
    labels = {"title": "EndpointSlice Hub", "licenses": "Apache-2.0", "version": version}
    umoci(
        "config",
        "--image",
        tag,
        "--no-history",
        "--created",
        made,
        "--config.user",
        USER,
        "--config.entrypoint",
        "hub",
        "--config.cmd",
        "--help",
        *(f"--config.env={line}" for line in ENVIRONMENT),
        *(f"--config.label=org.opencontainers.image.{key}={value}" for key, value in labels.items()),
    )
    umoci("gc", "--layout", str(layout))
    index_file = layout / "index.json"
    index = json.loads(index_file.read_text())
    [manifest] = index["manifests"]
    # What containerd calls the image when `ctr images import` or `kind load image-archive` reads the archive.
    manifest["annotations"]["io.containerd.image.name"] = f"localhost/endpointslice-hub:{version}"
    index_file.write_text(json.dumps(index, sort_keys=True))
    digest: str = manifest["digest"]
    return digest


ENVIRONMENT: Final = (f"PATH=/{HOME}/bin:/usr/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "LANG=C.UTF-8")


def umoci(*arguments: str) -> None:
    """Run umoci."""
    image.run(["umoci", "--log=warn", *arguments])


def blobs(layout: Path) -> list[Path]:
    """The compressed layers, in order."""
    folder = layout / "blobs" / "sha256"
    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    layers = json.loads((folder / manifest["digest"].removeprefix("sha256:")).read_text())["layers"]
    return [folder / layer["digest"].removeprefix("sha256:") for layer in layers]


def version_of() -> str:
    """The hub's version."""
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(version)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

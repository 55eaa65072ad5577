"""Prints the software bill of materials of the image as CycloneDX 1.6: the packages of uv.lock with hashes and edges.

``python tools/sbom.py ARCHIVE`` adds the Debian packages of an image that ``make image`` has built.

The same lock and archive give the same bytes: the serial number is computed from the components, and the time is
SOURCE_DATE_EPOCH (1970 if it is not set).
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from typing import Final

import lock
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

STATUS: Final = re.compile(r"var/lib/dpkg/status\.d/.")
"""Paths of the files that describe the Debian packages in an image without dpkg."""


def main(arguments: Sequence[str]) -> int:
    """Print the bill of materials; the argument, if any, is the archive of the image."""
    debian = [component for archive in arguments for component in debian_packages(archive)]
    sys.stdout.write(JsonV1Dot6(bom(lock.packages(), debian)).output_as_string(indent=2) + "\n")
    return 0


def bom(locked: Sequence[lock.Package], debian: Sequence[Component] = ()) -> Bom:
    """The bill of all packages in the image; its subject is the hub."""
    needs = [package for package, _ in lock.closure(locked, lock.shipped(locked))]
    components = {package["name"]: component(package) for package in needs}
    hub = components["endpointslice-hub"]
    hub.type = ComponentType.APPLICATION
    made = Bom(components=[*(part for part in components.values() if part is not hub), *debian])
    made.metadata.component = hub
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    content = [lock.requirements(locked, lock.shipped(locked)), *(str(package.purl) for package in debian)]
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(content))
    for package in needs:
        depends_on = [components[lock.find(locked, edge)["name"]] for edge in lock.edges(package)]
        if package["name"] == hub.name:  # the image also contains the providers, which the hub does not depend on
            depends_on += [components[name] for name in lock.shipped(locked) if name != hub.name]
        made.register_dependency(components[package["name"]], depends_on)
    return made


def component(package: lock.Package) -> Component:
    """One package, with the files that the lock allows."""
    name, version = package["name"], package["version"]
    purl = PackageURL("pypi", None, name, version)
    references = [
        ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(file["url"]),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file["hash"].removeprefix("sha256:"))],
        )
        for file in lock.files(package)
    ]
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), external_references=references)


def debian_packages(path: str) -> Iterator[Component]:
    """The Debian packages in the layers of an OCI archive, by layer and name."""
    with tarfile.open(path) as archive:
        [described] = json.loads(content(archive, "index.json"))["manifests"]
        for layer in json.loads(content(archive, blob(described)))["layers"]:
            with tarfile.open(fileobj=io.BytesIO(content(archive, blob(layer)))) as files:
                for name in filter(STATUS.match, files.getnames()):
                    fields = BytesHeaderParser().parsebytes(content(files, name))
                    purl = PackageURL("deb", "debian", fields["Package"], fields["Version"])
                    yield Component(name=purl.name, version=purl.version, purl=purl, bom_ref=str(purl))


def blob(descriptor: dict[str, str]) -> str:
    """The path of a blob in an OCI archive."""
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def content(archive: tarfile.TarFile, name: str) -> bytes:
    """The content of a file in an archive."""
    file = archive.extractfile(name)
    assert file is not None  # noqa: S101 - no folder
    return file.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Prints the software bill of materials of the image as CycloneDX 1.6: the packages of uv.lock with hashes and edges.

The same lock gives the same bytes: the serial number is computed from the components, and the time is
SOURCE_DATE_EPOCH (1970 if it is not set).
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import lock
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL


def main() -> int:
    """Print the bill of materials."""
    sys.stdout.write(JsonV1Dot6(bom(lock.packages())).output_as_string(indent=2) + "\n")
    return 0


def bom(locked: Sequence[lock.Package]) -> Bom:
    """The bill of all packages in the image; its subject is the hub."""
    needs = [package for package, _ in lock.closure(locked, lock.shipped(locked))]
    components = {package["name"]: component(package) for package in needs}
    hub = components["endpointslice-hub"]
    hub.type = ComponentType.APPLICATION
    made = Bom(components=[part for part in components.values() if part is not hub])
    made.metadata.component = hub
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, lock.requirements(locked, lock.shipped(locked)))
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


if __name__ == "__main__":
    sys.exit(main())

"""The software bill of materials of the image: what uv.lock says, with hashes and edges, as CycloneDX 1.6 on stdout.

Same lock, same bytes: the serial number comes from the components, the time from SOURCE_DATE_EPOCH (else 1970).
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
    """Print it."""
    sys.stdout.write(JsonV1Dot6(bom(lock.packages())).output_as_string(indent=2) + "\n")
    return 0


def bom(locked: Sequence[lock.Package]) -> Bom:
    """Every package the image holds; its subject is the hub."""
    needs = [package for package, _ in lock.closure(locked, lock.shipped(locked))]
    components = {package["name"]: component(package) for package in needs}
    hub = components["endpointslice-hub"]
    hub.type = ComponentType.APPLICATION
    made = Bom(components=[each for each in components.values() if each is not hub])
    made.metadata.component = hub
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, lock.requirements(locked, lock.shipped(locked)))
    for package in needs:
        depends_on = [components[lock.find(locked, edge)["name"]] for edge in lock.edges(package)]
        if package["name"] == hub.name:  # the image holds the providers beside the hub, which does not ask for them
            depends_on += [components[name] for name in lock.shipped(locked) if name != hub.name]
        made.register_dependency(components[package["name"]], depends_on)
    return made


def component(package: lock.Package) -> Component:
    """One package, with the files the lock allows for it."""
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

"""The resources of Azure that the provider uses, read from JSON. A resource without a needed part is an error.

Azure writes ids in varying case; here they are in lower case. They are not checked, see :mod:`hub_provider_azure.ids`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hub.plugin import TransientProviderError

Id = Annotated[str, Field(min_length=1), AfterValidator(str.lower)]
Region = Annotated[str, AfterValidator(lambda location: location.lower().replace(" ", ""))]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class _Reference(_Part):
    id: Id


def _id(reference: _Reference | None) -> str:
    return reference.id if reference else ""


class _State(_Part):
    provisioning_state: str

    @property
    def busy(self) -> bool:
        return self.provisioning_state in ("Updating", "Deleting")


class _Sku(_Part):
    tier: str | None = None


class _AddressProperties(_State):
    method: str = Field(alias="publicIPAllocationMethod")
    ip_address: str | None = None
    ip_configuration: _Reference | None = None
    nat_gateway: _Reference | None = None


class PublicAddress(_Part):
    """A public IP address."""

    id: Id
    location: Region
    sku: _Sku | None = None
    properties: _AddressProperties

    @property
    def value(self) -> str:
        """The address; "" if it has none now."""
        return self.properties.ip_address or ""

    @property
    def dynamic(self) -> bool:
        """Whether it loses its value when it is detached."""
        return self.properties.method != "Static"

    @property
    def unfit(self) -> str:
        """Why it is not a reserved address for instances; "" if it is one."""
        if self.sku is not None and self.sku.tier == "Global":
            return "its tier is Global, which is for load balancers only"
        return "its allocation is dynamic; make it static" if self.dynamic else ""

    @property
    def holder(self) -> str:
        """Id of the IP configuration or the NAT gateway that has it; "" if nothing has it."""
        return _id(self.properties.ip_configuration) or _id(self.properties.nat_gateway)


class _ConfigurationProperties(_Part):
    primary: bool | None = None
    address: _Reference | None = Field(default=None, alias="publicIPAddress")


class _Configuration(_Reference):
    properties: _ConfigurationProperties


class _InterfaceProperties(_State):
    primary: bool | None = None
    ip_configurations: list[_Configuration]
    virtual_machine: _Reference | None = None


class Interface(_Part):
    """A network interface."""

    id: Id
    location: Region
    etag: str = Field(min_length=1)
    properties: _InterfaceProperties

    @property
    def machine(self) -> str:
        """Id of its virtual machine; "" if it has none."""
        return _id(self.properties.virtual_machine)

    @property
    def configuration(self) -> str:
        """Id of its primary IP configuration; "" if it is not clear which one that is."""
        return self._main.id if self._main else ""

    @property
    def address(self) -> str:
        """Id of the public IP address on the primary IP configuration; "" if none."""
        return _id(self._main.properties.address) if self._main else ""

    @property
    def _main(self) -> _Configuration | None:
        parts = self.properties.ip_configurations
        main = [part for part in parts if len(parts) == 1 or part.properties.primary]
        return main[0] if len(main) == 1 else None


def with_address(document: dict[str, Any], configuration: str, address: str) -> dict[str, Any]:
    """Returns a network interface with another public IP address. Everything else stays as it was read.

    Args:
        document: the network interface.
        configuration: id of the IP configuration to change.
        address: id of the public IP address; "" = none.
    """
    new = {"publicIPAddress": {"id": address}} if address else {}

    def changed(part: dict[str, Any]) -> dict[str, Any]:
        if part["id"].lower() != configuration:
            return part
        kept = {name: value for name, value in part["properties"].items() if name != "publicIPAddress"}
        return {**part, "properties": kept | new}

    properties = document["properties"]
    parts = [changed(part) for part in properties["ipConfigurations"]]
    return {**document, "properties": {**properties, "ipConfigurations": parts}}


class _Status(_Part):
    code: str


class _InstanceView(_Part):
    statuses: list[_Status]


class _Primary(_Part):
    primary: bool | None = None


class _InterfaceReference(_Reference):
    properties: _Primary = _Primary()


class _NetworkProfile(_Part):
    network_interfaces: list[_InterfaceReference]


class _MachineProperties(_State):
    network_profile: _NetworkProfile
    instance_view: _InstanceView


class Machine(_Part):
    """A virtual machine with its instance view."""

    location: Region
    zones: list[str] | None = None
    properties: _MachineProperties

    @property
    def zone(self) -> str:
        """Its availability zone, or ""."""
        return self.zones[0] if self.zones else ""

    @property
    def power(self) -> str:
        """Such as ``running`` or ``deallocated``; "" if Azure does not say."""
        codes = [status.code for status in self.properties.instance_view.statuses]
        return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "")

    @property
    def running(self) -> bool:
        """Whether it runs and is not being deleted."""
        return self.power in ("running", "starting") and self.properties.provisioning_state != "Deleting"

    @property
    def interface(self) -> str:
        """Id of its primary network interface; "" if it has none."""
        parts = self.properties.network_profile.network_interfaces
        return next((part.id for part in parts if part.properties.primary or len(parts) == 1), "")


P = TypeVar("P", bound=BaseModel)


def read(model: type[P], document: dict[str, Any], what: str) -> P:
    """Reads a resource.

    Args:
        model: the class of the resource.
        document: the JSON object.
        what: the account and the request, in words.

    Raises:
        TransientProviderError: a needed part is missing or has the wrong type.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"]))
        raise TransientProviderError(f"{what}: the answer has no valid {place[:100]}") from None

"""clusters.yaml as pydantic models: every key with its type, limits and description.

Validation and the JSON Schema both come from these models. The defaults that apply are in :mod:`hub.registry.spec`,
since merging the layers needs to know which keys were written (``model_fields_set``). Rules that need several keys are
in :mod:`hub.registry.checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel

from hub import durations
from hub.registry import values
from hub.registry.spec import VIEW_ANNOTATION, Network, SelectorTerm


def _schema(pattern: str, example: str, *, longest: int | None = None) -> WithJsonSchema:
    limit = {} if longest is None else {"maxLength": longest}
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$", "examples": [example], **limit})


_TEXT = WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1024})
_QUALIFIED = r"([a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)"
_SUBDOMAIN = rf"{values.LABEL_PATTERN}(\.{values.LABEL_PATTERN})*"
_GLOB = "[a-z0-9*][-.a-z0-9*]*/[a-z0-9*][-.a-z0-9*]*"

Duration = Annotated[float, PlainValidator(values.duration), _schema(durations.PATTERN, "1h30m")]
Hold = Annotated[float | None, PlainValidator(values.duration_or_never), _schema(f"{durations.PATTERN}|never", "5m")]
Percent = Annotated[float, PlainValidator(values.percent), _schema(values.PERCENT_PATTERN, "50%")]
PercentOrOff = Annotated[
    float | None, PlainValidator(values.percent_or_off), _schema(f"{values.PERCENT_PATTERN}|off", "50%")
]
Text = Annotated[str, PlainValidator(values.text), _TEXT]
FilePath = Annotated[str, PlainValidator(values.file_path), _TEXT]
Label = Annotated[str, PlainValidator(values.label), _schema(values.LABEL_PATTERN, "payments-eu", longest=63)]
Subdomain = Annotated[
    str,
    PlainValidator(values.subdomain),
    _schema(_SUBDOMAIN, "worker-1.example.com", longest=253),
]
ProviderName = Annotated[
    str,
    PlainValidator(values.provider_name),
    _schema("[a-z0-9]([-_.a-z0-9]*[a-z0-9])?", "node-addresses", longest=63),
]
SecretKey = Annotated[str, PlainValidator(values.secret_key), _schema("[-._a-zA-Z0-9]+", "kubeconfig", longest=253)]
LabelKey = Annotated[str, PlainValidator(values.label_key), _schema(_QUALIFIED, "region")]
LabelValue = Annotated[str, PlainValidator(values.label_value), _schema(f"{_VALUE}?", "eu")]
Zone = Annotated[str, PlainValidator(values.zone), _schema(_VALUE, "eu-central-1a", longest=63)]
Owner = Annotated[str, PlainValidator(values.owner), _schema(_SUBDOMAIN, "default", longest=63)]
PreviousOwner = Annotated[str, PlainValidator(values.previous_owner), _schema(_VALUE, "default")]
ManagedBy = Annotated[str, PlainValidator(values.managed_by), _schema(_VALUE, "old-controller", longest=63)]
Selector = Annotated[
    tuple[SelectorTerm, ...],
    PlainValidator(values.selector),
    WithJsonSchema({"type": "string", "maxLength": 1024, "examples": ["pool=ingress,!spot"]}),
]
Cidr = Annotated[Network, PlainValidator(values.cidr), _schema(values.CIDR_PATTERN, "10.7.0.0/16")]
Address = Annotated[str, PlainValidator(values.address), _schema("[0-9a-fA-F:.]+", "10.7.0.9")]
PortRange = Annotated[
    tuple[int, int],
    PlainValidator(values.port_range),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": "^[0-9]{1,5}-[0-9]{1,5}$"},
            ],
            "examples": ["30000-32767"],
        }
    ),
]
ObjectName = Annotated[
    str, PlainValidator(values.object_name), _schema(f"{values.LABEL_PATTERN}/{values.LABEL_PATTERN}", "ingress/envoy")
]
ObjectGlob = Annotated[str, PlainValidator(values.object_glob), _schema(_GLOB, "team-a/*")]
PortOrName = Annotated[
    int | str,
    PlainValidator(values.port_or_name),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "maxLength": 63}]}
    ),
]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
ProbeInterval = Annotated[float, PlainValidator(values.probe_interval), _schema(durations.PATTERN, "5s")]
AskInterval = Annotated[float, PlainValidator(values.ask_interval), _schema(durations.PATTERN, "15s")]
DrainTime = Annotated[float, PlainValidator(values.drain_time), _schema(durations.PATTERN, "30s")]
ProbeTimeout = Annotated[float, PlainValidator(values.probe_timeout), _schema(durations.PATTERN, "3s")]
HeaderName = Annotated[str, PlainValidator(values.header_name), _schema(values.HEADER_PATTERN, "X-Probe", longest=63)]
HeaderValue = Annotated[str, PlainValidator(values.header_value), WithJsonSchema({"type": "string", "maxLength": 1024})]
CelText = Annotated[
    str,
    PlainValidator(values.cel),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096, "examples": ["cluster == 'local'"]}),
]
HostName = Annotated[str, PlainValidator(values.host), _schema(values.HOST_PATTERN, "shop.example.com", longest=253)]
GrpcService = Annotated[
    str,
    PlainValidator(values.grpc_service),
    WithJsonSchema({"type": "string", "maxLength": 253, "pattern": "^[!-~]*$", "examples": ["shop.v1.Cart"]}),
]
HttpPath = Annotated[str, PlainValidator(values.http_path), _schema("/[!-~]*", "/healthz?ready=1", longest=1024)]
StatusRange = Annotated[
    tuple[int, int],
    PlainValidator(values.status_range),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 100, "maximum": 599},
                {"type": "string", "pattern": "^[1-5][0-9]{2}-[1-5][0-9]{2}$"},
            ],
            "examples": ["200-299"],
        }
    ),
]


def optional(description: str, default: JsonValue = None, **more: Any) -> Any:
    """An optional key. ``default`` is the default of :mod:`hub.registry.spec` as users would write it, for the docs."""
    extra: dict[str, JsonValue] = {} if default is None else {"default": default}
    return Field(default=None, description=description, json_schema_extra=extra, **more)


def required(description: str, **more: Any) -> Any:
    """A key that must be written."""
    return Field(description=description, **more)


class Section(BaseModel):
    """Base of all models: no value is coerced, unknown keys are errors, keys are camelCase in the file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel, defer_build=True)
    usual_key: ClassVar[str] = ""
    """The key to suggest if a user wrote plain text instead of the section."""


class Exclude(Section):
    """Break-glass: what is never published, whatever else asks for it."""

    nodes: list[Subdomain] | None = optional("Names of Nodes.", [])
    addresses: list[Address] | None = optional("IP addresses.", [])


class Nodes(Section):
    """Which nodes of a source are eligible."""

    selector: Selector | None = optional("Label selector in kubectl's syntax.", "")
    control_plane: bool | None = optional("Publish control plane nodes too.", default=False)
    cordoned: Literal["keep", "not-ready", "drop"] | None = optional(
        "What happens to the endpoints of cordoned nodes.", "keep"
    )
    not_ready_grace: Duration | None = optional(
        "How long a node that is published may be not Ready before it leaves. A node is added only when it is Ready.",
        "30s",
    )
    max_not_ready: Percent | None = optional(
        "While more nodes than this are not Ready, no node leaves for being not Ready.", "50%"
    )
    exclude: Exclude | None = optional("Break-glass: never publish these.")


class Guard(Section):
    """How much may be removed, and when."""

    empty_results: Annotated[int, Field(ge=0, le=1000)] | None = optional(
        "How many complete answers in a row must be empty before empty is published; 0 = never.", 3
    )
    max_removal: PercentOrOff | None = optional(
        "A removal of more than this share of the peak number of endpoints is withheld.", "50%"
    )
    max_removal_window: Duration | None = optional(
        "The peak is the highest number of endpoints within this time.", "10m"
    )
    max_removal_hold: Hold | None = optional(
        "A withheld removal is released when the answer has not changed for this long.", "5m"
    )


class Unreachable(Section):
    """What happens to the endpoints of a cluster that cannot be reached."""

    after: Duration | None = optional("How long after the last complete answer `policy` applies.", "10m")
    policy: Literal["keep", "not-ready", "remove"] | None = optional("keep: endpoints stay as they are.", "keep")
    probe: Literal["off", "tcp"] | None = optional(
        "tcp: probe addresses while the cluster is unreachable, even if `health` is off. Those that answer stay as "
        "they are.",
        "off",
    )


class Health(Section):
    """Active checks of the published addresses (docs/how-to/health.md)."""

    mode: Literal["off", "tcp", "http", "https", "grpc", "grpcs"] | None = optional("How to probe.", "off")
    port: PortNumber | None = optional("Port to probe; default: the first TCP port that is published.")
    health_check_node_port: ObjectName | None = optional(
        "Probe the healthCheckNodePort of this Service (namespace/name) of the remote cluster."
    )
    interval: ProbeInterval | None = optional("Time between probes of one address, give or take 5 %.", "5s")
    timeout: ProbeTimeout | None = optional("A probe that takes longer fails.", "3s")
    rise: Annotated[int, Field(ge=1, le=1000)] | None = optional("Successes in a row that make an address healthy.", 2)
    fall: Annotated[int, Field(ge=1, le=1000)] | None = optional("Failures in a row that make it unhealthy.", 3)
    on_fail: Literal["not-ready", "remove"] | None = optional("What happens to an unhealthy address.", "not-ready")
    path: HttpPath | None = optional("Path, and query, of an HTTP probe.", "/")
    method: Literal["GET", "HEAD", "OPTIONS"] | None = optional("Method of an HTTP probe.", "GET")
    host: HostName | None = optional(
        "Host header of an HTTP probe, `:authority` of a gRPC probe; default: the address."
    )
    headers: Annotated[dict[HeaderName, HeaderValue], Field(max_length=32)] | None = optional(
        "Additional headers of an HTTP probe. No secrets.", {}
    )
    status: list[StatusRange] | None = optional(
        "Statuses that pass. Redirects are not followed.", ["200-399"], min_length=1, max_length=32
    )
    grpc_service: GrpcService | None = optional(
        "The service that a gRPC probe asks for; default: the server as a whole.", ""
    )
    server_name: Subdomain | None = optional("Name for SNI and in the certificate; default: the address.")
    ca: FilePath | None = optional(
        "File with the certificates to trust, below --credentials-dir; default: the system's."
    )
    insecure: bool | None = optional("Accept any certificate.", default=False)


class Layer(Section):
    """Keys that a source, a service, a cluster and the defaults may set."""

    nodes: Nodes | None = optional("Which nodes are eligible.")
    guard: Guard | None = optional("How much may be removed, and when.")
    unreachable: Unreachable | None = optional("What happens when the cluster cannot be reached.")
    health: Health | None = optional("Active checks.")
    zone_map: dict[Zone, Zone] | None = optional(
        "Zone of the source's nodes: zone of the hub cluster. Endpoints get the hub's zone, and hints for it.", {}
    )


class Defaults(Layer):
    """Applies unless the source, the service or the cluster says otherwise."""


class Kubeconfig(Section):
    """Access to a remote cluster: a file, or a Secret in the hub cluster."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["path"]}, {"required": ["secret"]}, {"required": ["inCluster"]}],
            "dependentRequired": {"key": ["secret"]},
        }
    )

    usual_key = "path"

    path: FilePath | None = optional("A kubeconfig file, relative to this file; in its folder or in --credentials-dir.")
    secret: Subdomain | None = optional("A Secret in the hub's --secrets-namespace.")
    key: SecretKey | None = optional("Key inside the Secret.", "kubeconfig")
    context: Text | None = optional("Context to use; default: the kubeconfig's current one.")
    in_cluster: Literal[True] | None = optional(
        "The hub cluster itself, with the hub's own account; only with `cloud`."
    )


class Provider(Section):
    """The plugin that finds the addresses."""

    usual_key = "name"

    name: ProviderName = required("Name of an installed provider (see `hub providers`).")
    config: dict[str, Any] | None = optional("The provider's own configuration.", {})


class CloudNodes(Section):
    """What the cloud controller does with Nodes."""

    initialize: bool | None = optional("Give new Nodes their provider ID, labels and addresses.", default=True)
    addresses: bool | None = optional("Keep the addresses of Nodes as the cloud states them.", default=True)
    shutdown_taint: bool | None = optional("Taint Nodes whose machine is shut down.", default=True)
    delete: Literal["guarded", "never"] | None = optional("Whether Nodes without a machine are deleted.", "guarded")
    delete_after: Duration | None = optional("How long such a Node must be not Ready first.", "1m")
    max_delete: Percent | None = optional(
        "Most of the cluster's Nodes that are deleted within `deleteWindow`, at least one; more wait for approval.",
        "10%",
    )
    delete_window: Duration | None = optional("See `maxDelete`.", "10m")
    refresh: Duration | None = optional("How often the cloud is asked for all Nodes; at least 30s.", "5m")
    monitor: Duration | None = optional("How often it is asked for Nodes that are not Ready; at least 5s.", "20s")


class CloudLoadBalancers(Section):
    """What the cloud controller does with Services of type LoadBalancer."""

    class_: Text | None = Field(
        default=None,
        alias="class",
        description="The `spec.loadBalancerClass` of the Services; without it, Services without a class.",
    )
    namespaces: list[Label] | None = optional("Namespaces of the Services; [] = all.", [])
    settle: Duration | None = optional(
        "How long nodes must not change until balancers follow; default: the cloud's own, usually 2s."
    )
    settle_max: Duration | None = optional(
        "The longest time from the first change until balancers follow; three times as long while nodes only join "
        "and are less than four times as many as before. Default: the cloud's own, usually 10s."
    )
    resync: Duration | None = optional("How often the cloud is observed while nothing changes; at least 1m.", "10m")
    orphans: Literal["report", "delete"] | None = optional(
        "What happens to objects of this clusterName that no Service needs.", "report"
    )


class ClusterCloud(Section):
    """This hub is the cluster's cloud controller (docs/cloud-controller.md)."""

    usual_key = "provider"

    provider: Provider = required("The cloud's plugin, with its configuration.")
    mode: Literal["manage", "observe"] | None = optional(
        "observe: decided and shown, but nothing is written.", "manage"
    )
    cluster_name: Annotated[str, PlainValidator(values.text), _TEXT] | None = optional(
        "Last part of the name of every object in the cloud; default: the entry's name."
    )
    former_cluster_names: list[Text] | None = optional("Objects under these names are adopted and renamed.", [])
    nodes: CloudNodes | Literal["off"] | None = optional("Nodes; `off` = not handled.")
    load_balancers: CloudLoadBalancers | Literal["off"] | None = optional("Load balancers; `off` = not handled.")


class Cluster(Layer):
    """A remote cluster."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["allowedCIDRs"]}, {"required": ["cloud"]}]})

    name: Label = required("Unique; becomes a label of the slices. `local` is built in.")
    formerly: list[Label] | None = optional("Old names: their slices are adopted and relabelled.", [])
    state: Literal["active", "standby", "frozen"] | None = optional(
        "standby: watched, not published. frozen: not contacted, slices untouched.", "active"
    )
    kubeconfig: Kubeconfig | None = optional(
        "How to reach the cluster; not needed if the provider brings endpoints of its own."
    )
    labels: dict[LabelKey, LabelValue] | None = optional("Labels that `clusterSelector` matches.", {})
    allowed_cidrs: list[Cidr] | None = Field(
        default=None,
        alias="allowedCIDRs",
        min_length=1,
        description="Addresses outside are dropped. Required, except for a cluster with `cloud` that is no source.",
    )
    allowed_ports: list[PortRange] | None = optional("Ports taken from a Service must lie here.", ["30000-32767"])
    max_endpoints: Annotated[int, Field(ge=1, le=1_000_000)] | None = optional(
        "An answer with more endpoints than this is not believed: it counts as unknown.", 5000
    )
    provider: Provider | None = optional("Finds the addresses of this cluster's nodes.")
    cloud: ClusterCloud | None = optional("The hub is the cloud controller of this cluster.")


class Source(Layer):
    """One source of a service: a cluster by name, or clusters by label."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["cluster"]}, {"required": ["clusterSelector"]}]}
    )

    usual_key = "cluster"

    cluster: Label | None = optional("Name of a cluster, or `local`.")
    cluster_selector: dict[LabelKey, LabelValue] | None = optional("All clusters with these labels, in file order.")
    provider: Provider | None = optional("Used instead of the cluster's provider.")


class Failover(Section):
    """When strategy failover switches to another source, and back."""

    min_ready: Annotated[int, Field(ge=1, le=100_000)] | None = optional(
        "How many ready endpoints the active source needs.", 1
    )
    after: Duration | None = optional("How long the active source must have fewer before the switch.", "30s")
    failback: Literal["auto", "manual"] | None = optional("Whether to switch back to an earlier source.", "auto")
    failback_after: Duration | None = optional("How long the earlier source must have had enough first.", "5m")


class NodePort(Section):
    """A port read from a Service of the remote cluster."""

    service: ObjectName = required("namespace/name in the remote cluster.")
    port: PortOrName = required("Name or number of the Service's port.")


class Port(Section):
    """A published port."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["port"]}, {"required": ["nodePort"]}]})

    name: Label | None = optional("Name of the Service's port; a sole port may leave it out.")
    port: PortNumber | None = optional("The number consumers connect to.")
    node_port: NodePort | None = optional("Take the number from a Service of the remote cluster.")
    protocol: Literal["TCP", "UDP", "SCTP"] | None = optional("Transport protocol.", "TCP")
    app_protocol: LabelKey | None = optional("As in a Service's appProtocol.")


class Adopt(Section):
    """The controller whose slices of this Service the hub replaces."""

    managed_by: ManagedBy = required(
        "That controller's value of the label endpointslice.kubernetes.io/managed-by. Its slices are removed once ours "
        "cover them. "
        "endpoint-copier means slices with its label endpoint-copier/source."
    )


class Service(Layer):
    """A target: a Service of the hub cluster without a selector."""

    name: Label = required("The Service's name.")
    namespace: Label = required("The Service's namespace.")
    sources: list[Source] = required("Where the endpoints come from.", min_length=1)
    strategy: Literal["merge", "failover"] | None = optional(
        "merge: all sources. failover: the first source with ready endpoints.", "merge"
    )
    failover: Failover | None = optional("Details of strategy failover.")
    ports: list[Port] | None = optional("Default: from the Service.", min_length=1, max_length=100)
    policy: Literal["sync", "upsert-only"] | None = optional("upsert-only: endpoints are never removed.", "sync")
    endpoints_per_slice: Annotated[int, Field(ge=1, le=1000)] | None = optional("Most endpoints in one slice.", 100)
    drain: DrainTime | None = optional(
        "Publish an endpoint that leaves as terminating for this long before it is removed, at most 24h "
        "(docs/how-to/draining.md).",
        "0s",
    )
    adopt: Adopt | None = optional("Take over from another controller.")


class AllowedCopy(Section):
    """Which Services may copy which others by annotation; `*` matches any run of characters."""

    from_: ObjectGlob = required("Services that may be copied from.", alias="from")
    to: list[ObjectGlob] = required("Services that may ask for such a copy.", min_length=1)


class Annotations(Section):
    """Copies that Services ask for by annotation."""

    enabled: bool | None = optional("Whether Services may ask for copies.", default=False)
    allow: list[AllowedCopy] | None = optional("Without a rule, a Service may copy only from its own namespace.", [])


class Views(Section):
    """Endpoint views (docs/how-to/endpoint-views.md). The key alone, `views: {}`, turns them on."""

    clusters: list[Label] | None = optional("Clusters whose Services get views.", ["local"], min_length=1)
    annotation: LabelKey | None = optional(
        "Services with this annotation get views, whatever its value.", VIEW_ANNOTATION
    )
    select: CelText | None = optional(
        "Instead: a CEL expression over `service` (metadata and spec, as in the API) and `cluster` (a name)."
    )
    hooks: list[ProviderName] | None = optional("Installed consumers (entry points hub.views) to call.", [])


class CloudAccount(Section):
    """A cloud login whose reserved addresses allocations may use."""

    name: Label = required("Unique; `spec.cloud.account` of an allocation names it.")
    provider: ProviderName = required("An installed provider with the capability addresses (see `hub providers`).")
    config: dict[str, Any] | None = optional("The provider's own configuration.", {})
    addresses: list[Cidr] = required(
        "Addresses outside of these networks are never claimed; 0.0.0.0/0 must be written out.", min_length=1
    )
    clusters: list[Label] | None = optional("Clusters whose nodes may hold them.", ["local"], min_length=1)
    interval: AskInterval | None = optional("The addresses are described at most so often while nothing moves.", "15s")


class AllocationLimits(Section):
    """The brakes of allocations (docs/allocations.md)."""

    concurrent: Annotated[int, Field(ge=1, le=100)] | None = optional("Most moves of an account at a time.", 5)
    moves: Percent | None = optional("Most of a pool's attached addresses that move within `window`.", "50%")
    window: Duration | None = optional("See `moves`.", "10m")
    per_address: Annotated[int, Field(ge=1, le=3)] | None = optional(
        "An address that moved so often within `perAddressWindow` stays on a node that is not Ready for 30 m.", 3
    )
    per_address_window: Duration | None = optional("See `perAddress`.", "1h")
    dwell: Duration | None = optional("How long an address stays before it leaves a node that no longer fits.", "5m")
    max_not_ready: Percent | None = optional(
        "While more nodes than this are not Ready, no address leaves for that.", "50%"
    )


class Allocations(Section):
    """Reserved addresses on the right nodes (docs/allocations.md)."""

    mode: Literal["observe", "enforce"] | None = optional(
        "observe: plan and status, but no change of a cloud or a node.", "observe"
    )
    interlock: ObjectName | None = optional(
        "namespace/name of another controller's Lease: while somebody renews it, the hub changes nothing."
    )
    clouds: list[CloudAccount] = required("The accounts.", min_length=1)
    not_ready_grace: Duration | None = optional("How long a node may be not Ready before its address leaves.", "30s")
    cordoned_hold: Hold | None = optional(
        "How long a cordoned node with the workload keeps its address. Default for DaemonSets: 5m.", "never"
    )
    eviction: Literal["None", "Evict", "ForceDelete"] | None = optional(
        "The most that an allocation may ask for, for Pods that stay behind on a node that lost its address.", "Evict"
    )
    limits: AllocationLimits | None = optional("The brakes.")
    own_node: Literal["last", "never", "allow"] | None = optional(
        "Whether addresses go to the node that the hub runs on.", "last"
    )


class Head(Section):
    """The file without its clusters and services."""

    version: Literal[1] = required("Version of this format.")
    owner: Owner | None = optional(
        "Name of this hub: a label on all its slices, and the end of its Lease's name.", "default"
    )
    previous_owners: list[PreviousOwner] | None = optional("Owners whose slices are adopted.", [])
    denied_cidrs: list[Cidr] | None = optional(
        "Networks that are never published, in addition to those always denied and the hub cluster's own.",
        [],
        alias="deniedCIDRs",
    )
    defaults: Defaults | None = optional("Applies unless the source, the service or the cluster says otherwise.")
    annotations: Annotations | None = optional("Copies that Services ask for by annotation.")
    allocations: Allocations | None = optional("Reserved addresses on nodes (NetIPAllocation objects).")
    views: Views | None = optional(
        "Endpoint views: (service, port, endpoint) objects for programs that route traffic themselves."
    )


class File(Head):
    """The whole file."""

    clusters: list[Cluster] | None = optional("The remote clusters.", [])
    services: list[Service] | None = optional("The Services of the hub cluster to keep filled.", [])

"""Every kind of mistake in clusters.yaml: its place, and whether it rejects the file or freezes an entry."""

# ruff: noqa: E501 (messages are compared whole, as a user sees them)

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hub.errors import Problem, RegistryError
from hub.model import TargetKey
from hub.registry.file import MAX_BYTES, Loaded, checked_size
from hub.registry.load import load, loads
from tests.support.registry import strict

BASE = """\
version: 1
clusters:
  - name: alpha
    kubeconfig: {path: alpha}
    labels: {region: eu}
    allowedCIDRs: [10.0.0.0/8]
    provider: {name: node-addresses}
  - name: beta
    kubeconfig: {path: beta}
    allowedCIDRs: [10.0.0.0/8]
services:
  - name: web
    namespace: edge
    sources: [{cluster: alpha}]
"""
LABELS = "    labels: {region: eu}\n"
SOURCES = "    sources: [{cluster: alpha}]\n"
WEB = TargetKey("edge", "web")

WHOLE = [
    (
        "version: 1\n",
        "",
        ["f:1:1: the registry has no version (write version: 1 at its top, also if it is in a ConfigMap or a Secret)"],
    ),
    ("version: 1", 'version: "1"', ['f:1:10: version: must be 1, not "1" (remove the quotes)']),
    ("version: 1", "version: 2", ["f:1:10: version: must be 1, not 2 (this hub reads version 1)"]),
    ("version: 1", "version: true", ["f:1:10: version: must be 1, not true (this hub reads version 1)"]),
    ("version: 1\n", "version: 1\nversion: 1\n", ["f:2:1: version: is written twice (first in line 1, column 1)"]),
    ("version: 1\n", "version: 1\nownr: x\n", ["f:2:1: ownr: is not a known key here (did you mean owner?)"]),
    (
        "version: 1\n",
        "version: 1\nowner: a/b\n",
        ['f:2:8: owner: is not a label value: "a/b" (letters, digits, -, _ and . inside, at most 63)'],
    ),
    (
        "version: 1\n",
        "version: 1\nowner: Edge_1\npreviousOwners: [Edge_2]\n",
        [
            'f:2:8: owner: must consist of a-z, 0-9, and - or . inside, not "Edge_1" (the name of the hub\'s Lease ends with it)'
        ],
    ),
    (
        "version: 1\n",
        "version: 1\npreviousOwners: [default]\n",
        ['f:2:18: previousOwners[0]: "default" is the current owner'],
    ),
    (
        "version: 1\n",
        "version: 1\nowner: a\npreviousOwners: [default, a]\n",
        ['f:3:27: previousOwners[1]: "a" is the current owner'],
    ),
    (
        "version: 1\n",
        "version: 1\nowner: &x 5\n",
        ["f:2:8: owner: has an anchor (&x) (write the value out where it is needed)"],
    ),
    ("version: 1", "version: 1.0", ["f:1:10: version: must be 1, not 1.0 (this hub reads version 1)"]),
    ("name: beta", "name: [beta]", ["f:8:11: clusters[1].name: must be text, not a list"]),
    (
        "version: 1\n",
        "version: 1\ndefaults: {health: {mode: tcp, path: /, ca: a}}\n",
        [
            "f:2:32: defaults.health.path: has no effect with mode tcp (it needs mode http or https)",
            "f:2:41: defaults.health.ca: has no effect with mode tcp (it needs mode https or grpcs)",
        ],
    ),
    (
        "version: 1\n",
        "version: 1\ndeniedCIDRs: [10.0.0.1/8]\n",
        ['f:2:15: deniedCIDRs[0]: has bits set outside the mask: "10.0.0.1/8" (did you mean 10.0.0.0/8?)'],
    ),
    (
        "version: 1\n",
        "version: 1\ndefaults: {gaurd: {}}\n",
        ["f:2:12: defaults.gaurd: is not a known key here (did you mean guard?)"],
    ),
    (
        "version: 1\n",
        "version: 1\nannotations: {enabled: yes}\n",
        ['f:2:24: annotations.enabled: must be true or false, not the text "yes" (write true)'],
    ),
    (
        "version: 1\n",
        "version: 1\ndefaults: {guard: {maxRemoval: 50}}\n",
        ["f:2:32: defaults.guard.maxRemoval: must be a percentage, not the number 50 (write 50%, or off)"],
    ),
    (
        "name: beta",
        "name: alpha",
        [
            'f:8:11: clusters[1].name: "alpha" is declared twice (first in line 3)',
            "f:14:15: services[0].sources[0]: neither the source nor cluster alpha has a provider (add provider: to one of them)",
        ],
    ),
    (
        "name: beta",
        "name: local",
        [
            "f:8:11: clusters[1].name: local is built in and cannot be declared: it is the hub cluster (remove the entry)"
        ],
    ),
    (
        "name: beta",
        "name: Beta_2",
        ['f:8:11: clusters[1].name: is not a DNS label (a-z, 0-9 and - inside): "Beta_2" (such as beta-2)'],
    ),
    (
        "name: beta",
        "name: " + "b" * 64,
        [
            'f:8:11: clusters[1].name: is longer than 63 characters: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb...'
        ],
    ),
    ("  - name: beta\n    kubeconfig", "  - kubeconfig", ["f:8:5: clusters[1].name: is required"]),
    ("name: beta", "name: 5", ["f:8:11: clusters[1].name: must be text, not the number 5 (put it in quotes)"]),
    (
        "  - name: alpha\n",
        "  - 7\n  - name: alpha\n",
        ["f:3:5: clusters[0]: must be a mapping, not the number 7 (start it with name:)"],
    ),
    (
        "services:\n",
        "services: {}\nx:\n",
        [
            "f:11:11: services: must be a list, not a mapping (start each entry with - name:)",
            "f:12:1: x: is not a known key here (known: version, owner, previousOwners, deniedCIDRs, defaults, annotations, allocations, views, clusters, services)",
        ],
    ),
    (
        "services:\n",
        "services:\nx:\n",
        [
            "f:11:1: services: has no value (give it one or remove the key)",
            "f:12:1: x: is not a known key here (known: version, owner, previousOwners, deniedCIDRs, defaults, annotations, allocations, views, clusters, services)",
        ],
    ),
    (
        "  - name: web\n",
        "  - name: web\n    namespace: edge\n    sources: [{cluster: beta, provider: {name: p}}]\n  - name: web\n",
        ['f:15:11: services[1].name: "edge/web" is declared twice (first in line 12)'],
    ),
    (
        "namespace: edge",
        "namespace: Edge",
        ['f:13:16: services[0].namespace: is not a DNS label (a-z, 0-9 and - inside): "Edge" (such as edge)'],
    ),
    (
        "namespace: edge",
        "namespace: [",
        ["f:15:1: is not YAML: did not find expected ',' or ']', while parsing a flow sequence"],
    ),
    (
        "    namespace",
        "\tnamespace",
        [
            "f:13:1: is not YAML: found a tab character that violates indentation, while scanning a plain scalar (indent with spaces, not with tabs)"
        ],
    ),
    (
        "namespace: edge",
        "namespace: @edge",
        [
            "f:13:16: is not YAML: found character that cannot start any token, while scanning for the next token (put text that starts with @ in quotes)"
        ],
    ),
    ("namespace: edge", "namespace: edge: x", ["f:13:20: is not YAML: mapping values are not allowed in this context"]),
    (
        "{path: alpha}",
        "&x {path: alpha}",
        ["f:4:17: clusters[0].kubeconfig: has an anchor (&x) (write the value out where it is needed)"],
    ),
    (
        "{path: beta}",
        "*x",
        ["f:9:17: clusters[1].kubeconfig: refers to another place of the file (*alias) (write the value out)"],
    ),
    (
        "{path: alpha}",
        "!!map {path: alpha}",
        ["f:4:17: clusters[0].kubeconfig: has a tag (tag:yaml.org,2002:map) (remove it; quotes make text)"],
    ),
    (
        "namespace: edge",
        "namespace: !!str edge",
        ["f:13:16: services[0].namespace: has a tag (tag:yaml.org,2002:str) (remove it; quotes make text)"],
    ),
    (
        "namespace: edge",
        "[namespace]: edge",
        ["f:13:5: services[0]: is a list or mapping used as a key (keys are text)"],
    ),
    (
        SOURCES,
        SOURCES + "---\nversion: 1\n",
        ["f:15:1: starts a second document (a registry is one document: remove the ---)"],
    ),
    (
        SOURCES,
        SOURCES + "    sources:\n",
        ["f:15:5: services[0].sources: is written twice (first in line 14, column 5)"],
    ),
]
"""(text of BASE, its replacement, all problems) of mistakes that reject the whole file."""

ENTRY = [
    (
        LABELS,
        "    label: {region: eu}\n",
        ["f:5:5: clusters[0].label: is not a known key here (did you mean labels?)"],
    ),
    (
        LABELS,
        "    labels: {region: 1}\n",
        ["f:5:22: clusters[0].labels.region: must be text, not the number 1 (put it in quotes)"],
    ),
    (
        LABELS,
        "    labels: {-x: eu}\n",
        ['f:5:14: clusters[0].labels["-x"]: is not a label key: "-x" (letters, digits, -, _ and . inside, at most 63)'],
    ),
    (LABELS, "    labels: [eu]\n", ["f:5:13: clusters[0].labels: must be a mapping, not a list"]),
    (
        LABELS,
        LABELS + "    state: Standby\n",
        [
            'f:6:12: clusters[0].state: must be active, standby or frozen, not the text "Standby" (did you mean standby?)'
        ],
    ),
    (
        LABELS,
        LABELS + "    state: frozenn\n",
        ['f:6:12: clusters[0].state: must be active, standby or frozen, not the text "frozenn" (did you mean frozen?)'],
    ),
    (LABELS, LABELS + "    maxEndpoints: 0\n", ["f:6:19: clusters[0].maxEndpoints: must be at least 1, not 0"]),
    (
        LABELS,
        LABELS + '    maxEndpoints: "5"\n',
        ['f:6:19: clusters[0].maxEndpoints: must be a whole number, not the text "5" (remove the quotes)'],
    ),
    (
        LABELS,
        LABELS + "    maxEndpoints: 5.5\n",
        ["f:6:19: clusters[0].maxEndpoints: must be a whole number, not the number 5.5"],
    ),
    (
        LABELS,
        LABELS + "    allowedPorts: [0]\n",
        ["f:6:20: clusters[0].allowedPorts[0]: is outside the ports from 1 to 65535: 0"],
    ),
    (
        LABELS,
        LABELS + "    allowedPorts: [9-3]\n",
        ['f:6:20: clusters[0].allowedPorts[0]: is a range that ends before it starts: "9-3" (did you mean 3-9?)'],
    ),
    (
        LABELS,
        LABELS + "    allowedPorts: [http]\n",
        ['f:6:20: clusters[0].allowedPorts[0]: is not a port or a range of ports: "http" (such as 443 or 30000-32767)'],
    ),
    (
        LABELS,
        LABELS + "    allowedPorts: 443\n",
        [
            "f:6:19: clusters[0].allowedPorts: must be a list, not the number 443 (start each entry with a dash, or write [ ] around it)"
        ],
    ),
    (
        LABELS,
        LABELS + "    formerly: [beta]\n",
        ['f:6:16: clusters[0].formerly[0]: "beta" is the name of a cluster that exists'],
    ),
    (
        LABELS,
        LABELS + "    formerly: [local]\n",
        ['f:6:16: clusters[0].formerly[0]: "local" is the name of a cluster that exists'],
    ),
    (
        LABELS,
        LABELS + "    nodes: {controlPlane: yes}\n",
        ['f:6:27: clusters[0].nodes.controlPlane: must be true or false, not the text "yes" (write true)'],
    ),
    (
        LABELS,
        LABELS + "    nodes: {maxNotReady: 0.5}\n",
        ["f:6:26: clusters[0].nodes.maxNotReady: must be a percentage, not the number 0.5 (write 50%)"],
    ),
    (
        LABELS,
        LABELS + "    nodes: {notReadyGrace: 30}\n",
        [
            "f:6:28: clusters[0].nodes.notReadyGrace: must be a duration with a unit, not the number 30 (write 30s for seconds)"
        ],
    ),
    (
        LABELS,
        LABELS + "    nodes: {notReadyGrace: 1d}\n",
        ['f:6:28: clusters[0].nodes.notReadyGrace: is not a duration: "1d" (days are no unit here: 1d is 24h)'],
    ),
    (
        LABELS,
        LABELS + "    nodes: {notReadyGrace: -1s}\n",
        ['f:6:28: clusters[0].nodes.notReadyGrace: must not be negative: "-1s"'],
    ),
    (
        LABELS,
        LABELS + "    nodes: {selector: 'a in b'}\n",
        [
            'f:6:23: clusters[0].nodes.selector: is not a label selector: "a in b" (such as pool=ingress,zone in (a,b),!spot)'
        ],
    ),
    (
        LABELS,
        LABELS + "    nodes: {exclude: {addresses: [10.0.0.0/8, x]}}\n",
        [
            'f:6:35: clusters[0].nodes.exclude.addresses[0]: is not an IP address: "10.0.0.0/8" (a network does not fit here)',
            'f:6:47: clusters[0].nodes.exclude.addresses[1]: is not an IP address: "x"',
        ],
    ),
    (
        LABELS,
        LABELS + "    guard: {maxRemoval: false}\n",
        ['f:6:25: clusters[0].guard.maxRemoval: must not be false (write "off" in quotes)'],
    ),
    (
        LABELS,
        LABELS + "    guard: {maxRemovalHold: nevr}\n",
        ['f:6:29: clusters[0].guard.maxRemovalHold: is not a duration: "nevr" (such as 300ms, 30s or 1h30m, or never)'],
    ),
    (
        LABELS,
        LABELS + "    guard: {emptyResults: -1}\n",
        ["f:6:27: clusters[0].guard.emptyResults: must be at least 0, not -1"],
    ),
    (
        LABELS,
        LABELS + "    health: {healthCheckNodePort: envoy}\n",
        ['f:6:35: clusters[0].health.healthCheckNodePort: is not a Service: "envoy" (write namespace/name)'],
    ),
    (LABELS, LABELS + "    nodes:\n", ["f:6:5: clusters[0].nodes: has no value (give it one or remove the key)"]),
    (
        LABELS,
        LABELS + "    health: {mode: false}\n",
        [
            (
                "f:6:20: clusters[0].health.mode: must be off, tcp, http, https, grpc or grpcs, not false (true/false) "
                '(write "off" in quotes)'
            )
        ],
    ),
    ("    allowedCIDRs: [10.0.0.0/8]\n    provider", "    provider", ["f:3:5: clusters[0].allowedCIDRs: is required"]),
    ("[10.0.0.0/8]\n    provider", "[]\n    provider", ["f:6:19: clusters[0].allowedCIDRs: must not be empty"]),
    (
        "[10.0.0.0/8]\n    provider",
        "[10.0.0.0]\n    provider",
        ['f:6:20: clusters[0].allowedCIDRs[0]: is an address without a mask: "10.0.0.0" (write 10.0.0.0/32)'],
    ),
    (
        "[10.0.0.0/8]\n    provider",
        "[10.0.0.0/99]\n    provider",
        ['f:6:20: clusters[0].allowedCIDRs[0]: is not a network: "10.0.0.0/99" (such as 10.7.0.0/16 or fd00:7::/64)'],
    ),
    (
        "[10.0.0.0/8]\n    provider",
        "['::ffff:10.0.0.0/104']\n    provider",
        [
            'f:6:20: clusters[0].allowedCIDRs[0]: is an IPv4 network written as IPv6: "::ffff:10.0.0.0/104" (write it as IPv4)'
        ],
    ),
    (
        "{path: alpha}",
        "{path: alpha, secret: alpha}",
        [
            "f:4:31: clusters[0].kubeconfig.secret: cannot be combined with path (keep one of path, secret and inCluster)"
        ],
    ),
    ("{path: alpha}", "{context: alpha}", ["f:4:17: clusters[0].kubeconfig: needs path, secret or inCluster"]),
    (
        "{path: alpha}",
        "{path: alpha, key: k}",
        ["f:4:31: clusters[0].kubeconfig.key: belongs to a kubeconfig from a Secret"],
    ),
    (
        "{path: alpha}",
        "alpha",
        ['f:4:17: clusters[0].kubeconfig: must be a mapping, not the text "alpha" (write {path: alpha})'],
    ),
    (
        "{path: alpha}",
        "{path: ~/x}",
        ['f:4:24: clusters[0].kubeconfig.path: starts with ~, which is not expanded: "~/x" (write the whole path)'],
    ),
    ("{path: alpha}", '{path: ""}', ["f:4:24: clusters[0].kubeconfig.path: must be non-empty text on one line"]),
    (
        "    kubeconfig: {path: beta}\n",
        "",
        ["f:8:5: clusters[1]: needs a kubeconfig, or a provider that brings endpoints of its own"],
    ),
    (
        "{name: node-addresses}",
        "node-addresses",
        [
            'f:7:15: clusters[0].provider: must be a mapping, not the text "node-addresses" (write {name: node-addresses})'
        ],
    ),
    (
        "{name: node-addresses}",
        "{nam: x}",
        [
            "f:7:15: clusters[0].provider.name: is required",
            "f:7:16: clusters[0].provider.nam: is not a known key here (did you mean name?)",
        ],
    ),
    (
        "{name: node-addresses}",
        "{name: x, config: [1]}",
        ["f:7:33: clusters[0].provider.config: must be a mapping, not a list"],
    ),
    (
        "cluster: alpha}",
        "cluster: alhpa}",
        ['f:14:25: services[0].sources[0].cluster: no cluster is named "alhpa" (did you mean alpha?)'],
    ),
    (
        "cluster: alpha}",
        "cluster: beta}",
        [
            "f:14:15: services[0].sources[0]: neither the source nor cluster beta has a provider (add provider: to one of them)"
        ],
    ),
    (
        "cluster: alpha}",
        "cluster: local}",
        [
            "f:14:15: services[0].sources[0]: a local source needs a provider of its own (such as provider: {name: service-copy, config: {namespace: …, name: …}})"
        ],
    ),
    (
        "{cluster: alpha}",
        "{cluster: alpha}, {cluster: alpha}",
        ['f:14:43: services[0].sources[1].cluster: "alpha" is a source already'],
    ),
    ("{cluster: alpha}", "{}", ["f:14:15: services[0].sources[0]: needs cluster or clusterSelector"]),
    (
        "{cluster: alpha}",
        "alpha",
        ['f:14:15: services[0].sources[0]: must be a mapping, not the text "alpha" (write {cluster: alpha})'],
    ),
    ("[{cluster: alpha}]", "[]", ["f:14:14: services[0].sources: must not be empty"]),
    (SOURCES, "", ["f:12:5: services[0].sources: is required"]),
    (
        SOURCES,
        SOURCES + "    health: {mode: http, path: healthz}\n",
        ['f:15:32: services[0].health.path: must begin with /, not "healthz" (write /healthz)'],
    ),
    (
        "{cluster: alpha}",
        "{clusterSelector: {region: us}}",
        [
            "f:14:33: services[0].sources[0].clusterSelector: selects no cluster: none has these labels (labels in use: region=eu)"
        ],
    ),
    (
        "{cluster: alpha}",
        "{clusterSelector: {}}",
        [
            "f:14:15: services[0].sources[0]: neither the source nor cluster beta has a provider (add provider: to one of them)"
        ],
    ),
    (
        "{cluster: alpha}",
        "{cluster: alpha, clusterSelector: {region: eu}}",
        [
            "f:14:32: services[0].sources[0].clusterSelector: cannot be combined with cluster (keep one of cluster and clusterSelector)"
        ],
    ),
    (
        SOURCES,
        SOURCES + "    failover: {}\n",
        ["f:15:5: services[0].failover: needs strategy failover (add strategy: failover)"],
    ),
    (
        SOURCES,
        SOURCES + "    strategy: failover\n    policy: upsert-only\n",
        [
            "f:16:13: services[0].policy: upsert-only cannot be combined with strategy failover: a switch removes the old source"
        ],
    ),
    (SOURCES, SOURCES + "    ports: []\n", ["f:15:12: services[0].ports: must not be empty"]),
    (
        SOURCES,
        SOURCES + "    ports: [{port: 1}, {port: 2}]\n",
        [
            "f:15:13: services[0].ports[0]: needs a name, since the entry has several ports",
            "f:15:24: services[0].ports[1]: needs a name, since the entry has several ports",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    ports: [{port: 1, name: a}, {port: 2, name: a}]\n",
        [
            'f:15:29: services[0].ports[0].name: "a" is used by several ports',
            'f:15:49: services[0].ports[1].name: "a" is used by several ports',
        ],
    ),
    (
        SOURCES,
        SOURCES + "    ports: [{port: 70000}]\n",
        ["f:15:20: services[0].ports[0].port: must be at most 65535, not 70000"],
    ),
    (SOURCES, SOURCES + "    ports: [{name: a}]\n", ["f:15:13: services[0].ports[0]: needs port or nodePort"]),
    (
        SOURCES,
        SOURCES + "    ports: [{nodePort: {service: b, port: c}}]\n",
        ['f:15:34: services[0].ports[0].nodePort.service: is not a Service: "b" (write namespace/name)'],
    ),
    (
        SOURCES,
        SOURCES + "    ports: [{port: 1, protocol: tcp}]\n",
        ['f:15:33: services[0].ports[0].protocol: must be TCP, UDP or SCTP, not the text "tcp" (did you mean TCP?)'],
    ),
    (
        SOURCES,
        SOURCES + "    drain: 25h\n",
        ['f:15:12: services[0].drain: is not between 0s and 24h: "25h"'],
    ),
    (
        SOURCES,
        SOURCES + "    drain: -5s\n",
        ['f:15:12: services[0].drain: must not be negative: "-5s"'],
    ),
    (
        SOURCES,
        SOURCES + "    drain: 30\n",
        ["f:15:12: services[0].drain: must be a duration with a unit, not the number 30 (write 30s for seconds)"],
    ),
    (
        SOURCES,
        SOURCES + "    adopt: true\n",
        ["f:15:12: services[0].adopt: must be a mapping, not true (true/false)"],
    ),
    (
        SOURCES,
        SOURCES + "    adopt: {managedBy: endpointslicemirroring-controller.k8s.io}\n",
        [
            (
                "f:15:24: services[0].adopt.managedBy: endpointslicemirroring-controller.k8s.io is Kubernetes' own and "
                "writes again what is deleted (delete the Endpoints object that is mirrored)"
            )
        ],
    ),
    (
        SOURCES,
        SOURCES + "    adopt: {managedBy: endpointslice-controller.k8s.io}\n",
        [
            (
                "f:15:24: services[0].adopt.managedBy: endpointslice-controller.k8s.io is Kubernetes' own and writes "
                "again what is deleted (remove the Service's selector and delete the slices it left behind)"
            )
        ],
    ),
    (
        SOURCES,
        SOURCES + "    adopt: {managedBy: endpointslice-hub}\n",
        [
            (
                "f:15:24: services[0].adopt.managedBy: is the hub's own value (slices of another hub are adopted with "
                "previousOwners)"
            )
        ],
    ),
    (
        SOURCES,
        SOURCES + "    endpointsPerSlice: 1001\n",
        ["f:15:24: services[0].endpointsPerSlice: must be at most 1000, not 1001"],
    ),
    (
        SOURCES,
        SOURCES + "    Strategy: merge\n",
        ["f:15:5: services[0].Strategy: is not a known key here (did you mean strategy?)"],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: tcp, path: /}\n",
        [
            "f:15:25: services[0].health.path: has no effect with mode tcp (it needs mode http or https)",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: http, insecure: true, ca: a.pem}\n",
        [
            "f:15:26: services[0].health.insecure: has no effect with mode http (it needs mode https or grpcs)",
            "f:15:42: services[0].health.ca: cannot be combined with insecure: true (keep one of the two)",
            "f:15:42: services[0].health.ca: has no effect with mode http (it needs mode https or grpcs)",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: grpc, headers: {A: b}, serverName: a, grpcService: a b, host: a}\n",
        [
            "f:15:26: services[0].health.headers: has no effect with mode grpc (it needs mode http or https)",
            "f:15:43: services[0].health.serverName: has no effect with mode grpc (it needs mode https or grpcs)",
            'f:15:71: services[0].health.grpcService: is not the name of a gRPC service: "a b" (such as shop.v1.Cart)',
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: https, grpcService: a}\n",
        ["f:15:27: services[0].health.grpcService: has no effect with mode https (it needs mode grpc or grpcs)"],
    ),
    (
        SOURCES,
        SOURCES + "    zoneMap: {a b: x, c: '', d: 5}\n",
        [
            (
                'f:15:15: services[0].zoneMap["a b"]: is not a label value: "a b" (letters, digits, -, _ and . inside, at '
                "most 63)"
            ),
            (
                "f:15:26: services[0].zoneMap.c: must not be empty (write the value of the Nodes' label "
                "topology.kubernetes.io/zone)"
            ),
            "f:15:33: services[0].zoneMap.d: must be text, not the number 5 (put it in quotes)",
        ],
    ),
    (
        SOURCES,
        "    sources: [{cluster: local, provider: {name: p}, zoneMap: {a: b}}]\n",
        [
            (
                "f:14:53: services[0].sources[0].zoneMap: has no effect on cluster local, whose zones are those of the "
                "hub cluster (remove it)"
            ),
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {interval: 10ms, timeout: 2m}\n",
        [
            'f:15:24: services[0].health.interval: is not between 100ms and 1h: "10ms"',
            'f:15:39: services[0].health.timeout: is not between 10ms and 1m: "2m"',
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {headers: {Authorization: Bearer x, Host: a, X-A: 1, x-a: b}}\n",
        [
            (
                'f:15:24: services[0].health.headers.Authorization: carries a secret: "Authorization" '
                "(secrets are not written into this file)"
            ),
            'f:15:49: services[0].health.headers.Host: cannot be set: "Host" (use host:)',
            'f:15:58: services[0].health.headers.X-A: "X-A" is written twice',
            "f:15:63: services[0].health.headers.X-A: must be text, not the number 1 (put it in quotes)",
            'f:15:66: services[0].health.headers.x-a: "x-a" is written twice',
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {status: [99, 300-200, 2xx], host: 'a b'}\n",
        [
            "f:15:23: services[0].health.status[0]: is outside the statuses from 100 to 599: 99",
            (
                'f:15:27: services[0].health.status[1]: is a range that ends before it starts: "300-200" '
                "(did you mean 200-300?)"
            ),
            (
                'f:15:36: services[0].health.status[2]: is not an HTTP status or a range of them: "2xx" '
                "(such as 204 or 200-299)"
            ),
            'f:15:48: services[0].health.host: is not a host: "a b" (such as shop.example.com)',
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: tpc, port: 1, healthCheckNodePort: a/b}\n",
        [
            'f:15:20: services[0].health.mode: must be off, tcp, http, https, grpc or grpcs, not the text "tpc" (did you mean tcp?)',
            "f:15:34: services[0].health.healthCheckNodePort: cannot be combined with port (keep one of the two)",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    health: {insecure: true, ca: a.pem, headers: [a]}\n",
        [
            "f:15:30: services[0].health.ca: cannot be combined with insecure: true (keep one of the two)",
            "f:15:50: services[0].health.headers: must be a mapping, not a list",
        ],
    ),
    (
        LABELS,
        LABELS + "    state: true\n",
        ["f:6:12: clusters[0].state: must be active, standby or frozen, not true (true/false)"],
    ),
    (
        LABELS,
        LABELS + "    state: 5\n",
        ["f:6:12: clusters[0].state: must be active, standby or frozen, not the number 5"],
    ),
    (
        LABELS,
        LABELS + "    formerly: [[x], 5, 5]\n",
        [
            "f:6:16: clusters[0].formerly[0]: must be text, not a list",
            "f:6:21: clusters[0].formerly[1]: must be text, not the number 5 (put it in quotes)",
            "f:6:24: clusters[0].formerly[2]: must be text, not the number 5 (put it in quotes)",
        ],
    ),
    (
        LABELS,
        "    labels: {-x: [a]}\n",
        [
            'f:5:14: clusters[0].labels["-x"]: is not a label key: "-x" (letters, digits, -, _ and . inside, at most 63)',
        ],
    ),
    (LABELS, LABELS + "    nodes: x\n", ['f:6:12: clusters[0].nodes: must be a mapping, not the text "x"']),
    (
        "{name: node-addresses}",
        '"a b"',
        ['f:7:15: clusters[0].provider: must be a mapping, not the text "a b"'],
    ),
    ("{name: node-addresses}", "5", ["f:7:15: clusters[0].provider: must be a mapping, not the number 5"]),
    (
        "{name: node-addresses}",
        "{name: x, config: ~}",
        ["f:7:25: clusters[0].provider.config: has no value (give it one or remove the key)"],
    ),
    (
        "{name: node-addresses}",
        "{name: ~, config: {a: ~}}",
        ["f:7:16: clusters[0].provider.name: has no value (give it one or remove the key)"],
    ),
    (
        LABELS,
        LABELS + "    nodes: {config: {a: ~}, controlPlane: 'OFF'}\n",
        [
            (
                "f:6:13: clusters[0].nodes.config: is not a known key here (known: selector, controlPlane, cordoned, "
                "notReadyGrace, maxNotReady, exclude)"
            ),
            "f:6:22: clusters[0].nodes.config.a: has no value (give it one or remove the key)",
            'f:6:43: clusters[0].nodes.controlPlane: must be true or false, not the text "OFF" (write false)',
        ],
    ),
    (
        LABELS,
        LABELS + "    nodes: {controlPlane: maybe}\n    maxEndpoints: 1000001\n",
        [
            'f:6:27: clusters[0].nodes.controlPlane: must be true or false, not the text "maybe"',
            "f:7:19: clusters[0].maxEndpoints: must be at most 1000000, not 1000001",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    ports: [{nodePort: {servce: a/b, service: a/b, port: 1}, name: 5}]\n    guard: [x]\n",
        [
            "f:15:25: services[0].ports[0].nodePort.servce: is not a known key here (did you mean service?)",
            "f:15:68: services[0].ports[0].name: must be text, not the number 5 (put it in quotes)",
            "f:16:12: services[0].guard: must be a mapping, not a list",
        ],
    ),
    (
        SOURCES,
        SOURCES + "    ports: [{port: 1, name: a}, {port: 2, nodePort: {service: a/b, port: c}, name: b}, x]\n",
        [
            "f:15:43: services[0].ports[1].nodePort: cannot be combined with port (keep one of port and nodePort)",
            'f:15:88: services[0].ports[2]: must be a mapping, not the text "x"',
        ],
    ),
    (
        SOURCES,
        SOURCES + f"    health: {{status: [{', '.join(['200'] * 33)}], fall: 1001}}\n",
        [
            "f:15:22: services[0].health.status: must not have more than 32 entries",
            "f:15:195: services[0].health.fall: must be at most 1000, not 1001",
        ],
    ),
    (
        "    kubeconfig: {path: alpha}\n    labels: {region: eu}\n    allowedCIDRs: [10.0.0.0/8]\n    provider: {name: node-addresses}\n",
        "    labels: {region: eu}\n    allowedCIDRs: [10.0.0.0/8]\n",
        ["f:3:5: clusters[0]: needs a kubeconfig, or a provider that brings endpoints of its own"],
    ),
    (
        SOURCES,
        SOURCES + "    health: {mode: [tcp]}\n",
        ["f:15:20: services[0].health.mode: must be off, tcp, http, https, grpc or grpcs, not a list"],
    ),
    (
        "{cluster: alpha}",
        "{clusterSelector: {region: us}}, {cluster: 5}, x, {clusterSelector: 5}",
        [
            "f:14:33: services[0].sources[0].clusterSelector: selects no cluster: none has these labels (labels in use: region=eu)",
            "f:14:58: services[0].sources[1].cluster: must be text, not the number 5 (put it in quotes)",
            'f:14:62: services[0].sources[2]: must be a mapping, not the text "x" (write {cluster: x})',
            "f:14:83: services[0].sources[3].clusterSelector: must be a mapping, not the number 5",
        ],
    ),
]
"""(text of BASE, its replacement, all problems) of mistakes that freeze one entry."""


def edited(old: str, new: str) -> bytes:
    """The text of BASE with one change."""
    assert old in BASE
    return BASE.replace(old, new, 1).encode()


def accepted(text: str | bytes) -> Loaded:
    """The result for a text, loaded under a short name."""
    return loads(text if isinstance(text, bytes) else text.encode(), "f")


def rejected(content: bytes) -> list[str]:
    """The problems of a rejected file."""
    with pytest.raises(RegistryError) as caught:
        loads(content, "f")
    return [str(problem) for problem in caught.value.problems]


def test_base_is_clean() -> None:
    """The file that the tables edit has no problems."""
    assert accepted(BASE).problems == ()


@pytest.mark.parametrize(("old", "new", "expected"), WHOLE)
def test_mistake_outside_entries_rejects_the_file(old: str, new: str, expected: list[str]) -> None:
    """A problem that does not belong to one entry rejects the file, and all problems are reported."""
    assert rejected(edited(old, new)) == expected


@pytest.mark.parametrize(("old", "new", "expected"), ENTRY)
def test_mistake_inside_an_entry_freezes_it(old: str, new: str, expected: list[str]) -> None:
    """A mistake inside one entry is reported with its place and does not affect other entries."""
    loaded = accepted(edited(old, new))
    registry = loaded.registry

    assert [str(problem) for problem in loaded.problems] == expected
    assert len(registry.broken_clusters) + len(registry.broken_targets) == 1
    assert {*registry.clusters, *registry.broken_clusters} == {"local", "alpha", "beta"}
    assert {*registry.targets, *registry.broken_targets} == {WEB}
    assert registry.clusters.keys().isdisjoint(registry.broken_clusters)
    assert registry.targets.keys().isdisjoint(registry.broken_targets)


def test_all_problems_are_reported_at_once_in_file_order() -> None:
    """Problems of several kinds, entries and levels are reported together, in file order."""
    content = BASE.replace("{path: alpha}", "{pth: alpha}").replace("alpha}]", "alhpa, x: 1}]").replace("edge", "Edge")

    assert [problem.split(": ")[0] for problem in rejected(content.encode())] == [
        "f:4:17", "f:4:18", "f:13:16", "f:14:25", "f:14:32",
    ]  # fmt: skip


def test_former_name_of_two_clusters_is_refused() -> None:
    """A former name that several clusters claim is a problem of the later ones."""
    clusters = "".join(
        f"  - {{name: c{number}, allowedCIDRs: [10.0.0.0/8], provider: {{name: p}}, formerly: [x{number}, old]}}\n"
        for number in range(3)
    )

    loaded = accepted(f"version: 1\nclusters:\n{clusters}")

    assert [str(problem) for problem in loaded.problems] == [
        f'f:{line}:80: clusters[{number}].formerly[1]: "old" is claimed by clusters[0].formerly[1] too'
        for line, number in ((4, 1), (5, 2))
    ]
    assert loaded.registry.frozen_names == {"c1", "x1", "c2", "x2", "old"}


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ("", "no cluster has labels: add some, or use cluster: NAME"),
        (
            "    labels: {" + ", ".join(f"l{number}: b" for number in range(11)) + "}\n",
            "labels in use: l0=b, l10=b, l1=b, l2=b, l3=b, l4=b, l5=b, l6=b, l7=b, l8=b",
        ),
    ],
)
def test_selector_that_selects_nothing_shows_the_labels_in_use(labels: str, hint: str) -> None:
    """The hint lists up to ten labels in use."""
    text = BASE.replace(LABELS, labels).replace("{cluster: alpha}", "{clusterSelector: {region: us}}")

    (problem,) = accepted(text).problems

    assert (problem.message, problem.hint) == ("selects no cluster: none has these labels", hint)


def test_service_of_a_broken_cluster_stays_valid() -> None:
    """A service that names a broken cluster stays valid; that source has an unknown provider."""
    registry = accepted(edited("{name: node-addresses}", "{nam: x}")).registry

    assert list(registry.broken_clusters) == ["alpha"]
    assert [(source.cluster, source.provider.name) for source in registry.targets[WEB].sources] == [("alpha", "")]


@pytest.mark.parametrize("source", ["{cluster: alpha}, {cluster: gamma}", "{clusterSelector: {region: eu}}"])
@pytest.mark.parametrize("key", ["provder", "providers", "Provider"])
def test_misspelt_provider_freezes_only_its_cluster(key: str, source: str) -> None:
    """Services that name or select a cluster with a misspelt key stay valid."""
    gamma = f"  - {{name: gamma, kubeconfig: {{path: g}}, allowedCIDRs: [10.0.0.0/8], provider: {{name: p}}, {LABELS.strip()}}}\n"
    text = BASE.replace("    provider:", f"    {key}:").replace("services:\n", f"{gamma}services:\n")
    loaded = accepted(text.replace("{cluster: alpha}", source))

    assert [str(problem).split(": ")[1] for problem in loaded.problems] == [f"clusters[0].{key}"]
    assert list(loaded.registry.broken_clusters) == ["alpha"]
    assert {source.cluster: source.provider.name for source in loaded.registry.targets[WEB].sources} == {
        "alpha": "",
        "gamma": "p",
    }


@pytest.mark.parametrize("labels", ["    labels: [eu]\n", "    labels: {region: 1}\n", "    label: {region: eu}\n"])
def test_selector_keeps_a_cluster_whose_labels_broke(labels: str) -> None:
    """A cluster whose labels are invalid stays selected."""
    text = BASE.replace(LABELS, labels).replace("{cluster: alpha}", "{clusterSelector: {region: eu}}")

    registry = accepted(text).registry

    assert [source.cluster for source in registry.targets[WEB].sources] == ["alpha"]


def test_former_names_of_a_broken_cluster_are_frozen_too() -> None:
    """A broken cluster's former names are frozen, so that slices with these names stay."""
    registry = accepted(edited(LABELS, LABELS + "    formerly: [old, 5]\n")).registry

    assert registry.frozen_names == {"alpha", "old"}


def test_a_former_name_without_brackets_is_frozen_too() -> None:
    """A former name that is written as text instead of a list is frozen, even if a cluster has this name."""
    registry = accepted(edited(LABELS, LABELS + "    formerly: beta\n")).registry

    assert list(registry.broken_clusters) == ["alpha"]
    assert registry.frozen_names == {"alpha", "beta"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ["f: is empty (start with version: 1)"]),
        (b"# nothing\n", ["f: is empty (start with version: 1)"]),
        (b"~\n", ["f:1:1: is empty (start with version: 1)"]),
        (b"[]\n", ["f:1:1: must be a mapping, not a list (start with version: 1)"]),
        (b"version: 1\nowner: \xff\n", ["f:2:8: is not text in UTF-8 (save the file as UTF-8)"]),
        ("version: 1".encode("utf-16"), ["f:1:1: is not text in UTF-8 (save the file as UTF-8)"]),
    ],
)
def test_file_without_content_is_rejected(content: bytes, expected: list[str]) -> None:
    """An empty, foreign or binary file is rejected with a plain message."""
    assert rejected(content) == expected


def test_byte_order_mark_is_skipped() -> None:
    """A byte order mark is skipped and does not change columns."""
    assert rejected(b"\xef\xbb\xbfversion: 2\n") == ["f:1:10: version: must be 1, not 2 (this hub reads version 1)"]


def test_shortest_registry_has_local_only() -> None:
    """Only the version is required."""
    registry = strict(accepted("version: 1\n"))

    assert (registry.owner, list(registry.clusters), dict(registry.targets)) == ("default", ["local"], {})


def test_problem_of_the_whole_file_has_no_place(tmp_path: Path) -> None:
    """A problem of a file without content has no line, column and key."""
    with pytest.raises(RegistryError) as caught:
        load(tmp_path / "none")

    message = "cannot be read: No such file or directory"
    assert caught.value.problems == (Problem(str(tmp_path / "none"), 0, 0, "", message),)
    with pytest.raises(RegistryError) as caught:
        accepted("")
    assert caught.value.problems == (Problem("f", 0, 0, "", "is empty", "start with version: 1"),)


def test_content_is_neither_printed_nor_compared() -> None:
    """The bytes of a file are left out of the printed result, and of comparisons."""
    loaded = accepted(BASE)

    assert replace(loaded, content=b"hunter2") == loaded
    assert "hunter2" not in repr(replace(loaded, content=b"hunter2"))


def test_content_of_the_largest_size_is_accepted() -> None:
    """Content of exactly the largest size is accepted, one byte more is not."""
    content = b"#" * MAX_BYTES

    assert checked_size(content, "f") is content
    with pytest.raises(RegistryError, match=r"^f: is too large: 4,194,305 bytes, at most 4,194,304 are read$"):
        checked_size(content + b"#", "f")


def test_large_file_is_refused(tmp_path: Path) -> None:
    """A file of 10 MB is refused without reading it."""
    path = tmp_path / "clusters.yaml"
    with path.open("wb") as stream:
        stream.truncate(10 * 1024 * 1024)

    with pytest.raises(RegistryError) as caught:
        load(path)

    assert str(caught.value) == f"{path}: is too large: 10,485,760 bytes, at most 4,194,304 are read"


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    """The message for a missing file quotes the operating system's reason."""
    path = tmp_path / "none.yaml"

    with pytest.raises(RegistryError) as caught:
        load(path)

    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """A pipe or a device is not opened, since reading it might never end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(RegistryError, match="cannot be read: not a regular file"):
        load(path)


def test_digest_is_of_the_bytes() -> None:
    """A comment changes the digest and nothing else of the registry."""
    one, two = accepted(BASE).registry, accepted(BASE + "# x\n").registry

    assert one.digest != two.digest
    assert (one.clusters, one.targets) == (two.clusters, two.targets)


ALLOCATIONS = """\
version: 1
allocations:
  clouds:
    - {name: one, provider: gcp, addresses: [34.1.1.0/28]}
    - {name: two, provider: gcp, addresses: [34.1.2.0/28], clusters: [lokal]}
"""


def test_a_broken_account_is_frozen_and_the_others_stay() -> None:
    """A mistake in one account freezes that account only, and names its place."""
    loaded = loads(ALLOCATIONS.encode(), "f")
    spec = loaded.registry.allocations
    assert spec is not None
    assert list(spec.accounts) == ["one"]
    assert [str(problem) for problem in loaded.problems] == [
        'f:5:71: allocations.clouds[1].clusters[0]: no cluster is named "lokal" (did you mean local?)'
    ]
    assert list(spec.broken) == ["two"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("34.1.1.0/28", "2001:db8::/64", 'f:4:46: allocations.clouds[0].addresses[0]: "2001:db8::/64" is not IPv4'),
        (", addresses: [34.1.1.0/28]", "", "f:4:7: allocations.clouds[0].addresses: is required"),
        ("addresses: [34.1.1.0/28]", "adresses: []", "allocations.clouds[0].adresses: is not a known key here"),
        (
            "provider: gcp, addresses: [34.1.1.0/28]",
            "provider: gcp, addresses: [34.1.1.0/28], interval: 5s",
            "is not between 10s and 1h",
        ),
    ],
)
def test_mistakes_in_an_account_are_named(old: str, new: str, message: str) -> None:
    """Each mistake in an account is reported at its place, and breaks that account."""
    loaded = loads(ALLOCATIONS.replace(old, new, 1).replace("lokal", "local").encode(), "f")
    assert any(message in str(problem) for problem in loaded.problems), loaded.problems
    spec = loaded.registry.allocations
    assert spec is not None
    assert list(spec.accounts) == ["two"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clouds:", "mode: enforced\n  clouds:", "did you mean enforce?"),
        ("name: two", "name: one", '"one" is declared twice'),
        ("name: two", "name: Two", "allocations.clouds[1].name"),
        ("clouds:", "limits: {perAddress: 4}\n  clouds:", "must be at most 3, not 4"),
    ],
)
def test_mistakes_of_the_whole_section_reject_the_file(old: str, new: str, message: str) -> None:
    """A mistake outside of the accounts, or in an account's name, rejects the file."""
    with pytest.raises(RegistryError, match=re.escape(message)):
        loads(ALLOCATIONS.replace(old, new, 1).replace("lokal", "local").encode(), "f")


def test_allocations_have_the_defaults_of_the_documentation() -> None:
    """Without keys, the section observes, and a cordoned node keeps its address for ever, but five minutes for DaemonSets."""
    spec = loads(ALLOCATIONS.encode(), "f").registry.allocations
    assert spec is not None
    assert (spec.enforce, spec.cordoned_hold, spec.eviction, spec.limits.moves) == (False, None, "Evict", 0.5)
    written = loads(ALLOCATIONS.replace("clouds:", "cordonedHold: never\n  clouds:").encode(), "f").registry.allocations
    assert written is not None
    assert written.cordoned_hold == float("inf")


CLOUDS = """\
version: 1
clusters:
  - name: eu
    kubeconfig: {path: eu}
    cloud: {provider: {name: brightbox, config: {client: {env: C}, secret: {env: S}}}}
  - name: us
    kubeconfig: {path: us}
    cloud: {provider: {name: brightbox, config: {secret: {env: S}, client: {env: C}}}, clusterName: eu}
  - name: other
    kubeconfig: {path: other}
    cloud: {provider: {name: brightbox, config: {client: {env: C}, secret: {file: s}}}, clusterName: eu}
"""


def test_two_clusters_with_one_name_in_one_cloud_are_both_frozen() -> None:
    """Their objects would have the same names. The order of keys does not matter; another credential is another account."""
    loaded = loads(CLOUDS.encode(), "f")
    assert [str(problem) for problem in loaded.problems] == [
        'f:5:5: clusters[0].cloud: "eu" is the clusterName of clusters[1] in the same cloud too (give one of them another clusterName)',
        'f:8:5: clusters[1].cloud: "eu" is the clusterName of clusters[0] in the same cloud too (give one of them another clusterName)',
    ]
    assert set(loaded.registry.clusters) == {"local", "other"}
    assert set(loaded.registry.broken_clusters) == {"eu", "us"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", clusterName: eu}\n  - name: other", ", clusterName: us}\n  - name: other"),
        ("{secret: {env: S}, client: {env: C}}", "{secret: {env: S}, client: {env: D}}"),
    ],
)
def test_one_name_in_two_clouds_is_fine(old: str, new: str) -> None:
    """Another clusterName, or another client, makes two clusters of two."""
    loaded = loads(CLOUDS.replace(old, new, 1).encode(), "f")
    assert (loaded.problems, set(loaded.registry.clusters)) == ((), {"local", "eu", "us", "other"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    kubeconfig: {path: eu}\n", "", "f:4:5: clusters[0].cloud: needs a kubeconfig"),
        (
            "kubeconfig: {path: eu}\n    cloud: {provider: {name: brightbox, config: {client: {env: C}, secret: {env: S}}}}",
            "kubeconfig: {inCluster: true}\n    allowedCIDRs: [10.0.0.0/8]",
            "f:4:18: clusters[0].kubeconfig.inCluster: belongs to a cluster with cloud: as a source, the hub cluster is the built-in cluster local",
        ),
        ("kubeconfig: {path: eu}", "kubeconfig: {inCluster: true}", ""),
    ],
)
def test_a_cloud_needs_a_cluster_of_its_own_or_the_hub_itself(old: str, new: str, message: str) -> None:
    """A kubeconfig is needed; inCluster is one only with a cloud, and neither needs allowedCIDRs then."""
    loaded = loads(CLOUDS.replace(", clusterName: eu", "").replace(old, new, 1).encode(), "f")
    assert [str(problem) for problem in loaded.problems] == [message] * bool(message)

"""Admission policies that hold the account of a cloud controller to what it changes on Nodes and Services. Pure.

RBAC cannot restrict a right to fields. The chart has the same policies, for the hub's own cluster: ``tools/chart.py``
writes them from here. All defaults that API servers fill in are written out, so that an applied policy equals its
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import yaml

from hub.controller.nodes import PAIRS, SHUTDOWN, UNINITIALIZED
from hub.controller.record import ANNOTATION
from hub.controller.services import FINALIZER, OWN_FINALIZER

LABELS: Final = tuple(label for _, *pair in PAIRS for label in pair)
NODE_LABELS: Final = "!key.matches('(^|[.])(kubernetes|k8s)[.]io/')"
"""Where the account may also label Nodes that have reserved addresses: labels that are not Kubernetes' own."""
_UNCHANGED: Final = (
    "object.metadata.?{0}.orValue({1}) == oldObject.metadata.?{0}.orValue({1})"  # fields that are absent may be empty
)
_OTHER_FIELDS: Final = (  # dyn: to CEL's type check, an object with a schema has no fields that could be listed
    "dyn(object).?{0}.orValue({{}}).all(field, field in {1} || (field in dyn(oldObject).?{0}.orValue({{}}) && "
    "dyn(object).{0}[field] == dyn(oldObject).{0}[field])) && "
    "dyn(oldObject).?{0}.orValue({{}}).all(field, field in {1} || field in dyn(object).?{0}.orValue({{}}))"
)
_RULE: Final = ("expression", "message", "messageExpression")
_CHANGED: Final = (
    "variables.{0}.filter(key, !(key in variables.{0}Before) || variables.{0}Before[key] != variables.{0}[key]) + "
    "variables.{0}Before.filter(key, !(key in variables.{0}))"
)


def _literal(value: object) -> str:
    """A text or a list of texts as CEL, whose literals are those of JSON."""
    return json.dumps(value)


def matches(patterns: Sequence[str]) -> str:
    """A condition in CEL: the text ``id`` wholly matches one of these regular expressions."""
    return " || ".join(f"id.matches({_literal(f'^(?:{pattern})$')})" for pattern in patterns) or "false"


def node_policy(account: str, provider_id: str, more_labels: str = "false") -> dict[str, Any]:
    """The ``spec`` of the policy for Nodes.

    Args:
        account: the user name of the account.
        provider_id: a condition in CEL about ``id``, which is an ID of the cloud.
        more_labels: a condition in CEL about ``key``: further labels that the account may change.
    """
    taints = _literal([UNINITIALIZED, SHUTDOWN.key])
    return _policy(
        account,
        "nodes",
        (
            ("labels", "object.metadata.?labels.orValue({})"),
            ("labelsBefore", "oldObject.metadata.?labels.orValue({})"),
            ("changed", _CHANGED.format("labels")),
            ("refused", f"variables.changed.filter(key, !(key in {_literal(LABELS)} || {more_labels}))"),
            ("taints", "object.spec.?taints.orValue([])"),
            ("taintsBefore", "oldObject.spec.?taints.orValue([])"),
            ("before", "oldObject.spec.?providerID.orValue('')"),
            ("ours", f"[variables.before].exists(id, {provider_id})"),
            ("given", f"[object.spec.?providerID.orValue('')].exists(id, {provider_id})"),
        ),
        (
            ("request.operation != 'CREATE'", "this account creates no Nodes"),
            (
                "request.operation != 'DELETE' || variables.ours",
                "this account deletes only Nodes with a provider ID of its cloud",
            ),
            (
                _on_update("size(variables.refused) == 0"),
                "this account changes only some labels of Nodes",
                "'this account does not change the label ' + variables.refused[0] + ' of Nodes'",
            ),
            (
                _on_update(
                    _UNCHANGED.format("annotations", "{}"),
                    _UNCHANGED.format("finalizers", "[]"),
                    _UNCHANGED.format("ownerReferences", "[]"),
                ),
                "this account changes no annotations, finalizers and owners of Nodes",
            ),
            (
                _on_update(
                    f"variables.taints.filter(t, !(t.key in {taints})) == "
                    f"variables.taintsBefore.filter(t, !(t.key in {taints}))",
                    f"variables.taints.all(t, t.key != {_literal(UNINITIALIZED)} || t in variables.taintsBefore)",
                    f"variables.taints.all(t, t.key != {_literal(SHUTDOWN.key)} || t in variables.taintsBefore || "
                    f"t.effect == {_literal(SHUTDOWN.effect)})",
                ),
                f"this account changes only the taints {UNINITIALIZED}, which it removes, and {SHUTDOWN.key}",
            ),
            (
                _on_update(
                    "object.spec.?providerID.orValue('') == variables.before || "
                    "(variables.before == '' && variables.given)"
                ),
                "this account sets only an empty provider ID, to one of its cloud",
            ),
            (
                _on_update(_OTHER_FIELDS.format("spec", _literal(["taints", "providerID"]))),
                "this account changes nothing in the spec of Nodes but two taints and an empty provider ID",
            ),
            (
                _on_update(_OTHER_FIELDS.format("status", _literal(["addresses"]))),
                "this account changes nothing in the status of Nodes but the addresses",
            ),
        ),
    )


def service_policy(account: str) -> dict[str, Any]:
    """The ``spec`` of the policy for Services; ``account`` is the user name of the account."""
    return _policy(
        account,
        "services",
        (
            ("annotations", "object.metadata.?annotations.orValue({})"),
            ("annotationsBefore", "oldObject.metadata.?annotations.orValue({})"),
            ("changed", _CHANGED.format("annotations")),
        ),
        (
            ("request.operation == 'UPDATE'", "this account neither creates nor deletes Services"),
            (_on_update("object.spec == oldObject.spec"), "this account does not change the spec of Services"),
            (
                _on_update(f"variables.changed.all(key, key == {_literal(ANNOTATION)})"),
                f"this account changes only the annotation {ANNOTATION} of Services",
            ),
            (
                _on_update(f"{_other_finalizers('object')} == {_other_finalizers('oldObject')}"),
                f"this account changes only the finalizers {FINALIZER} and {OWN_FINALIZER} of Services",
            ),
            (
                _on_update(_UNCHANGED.format("labels", "{}"), _UNCHANGED.format("ownerReferences", "[]")),
                "this account changes no labels and owners of Services",
            ),
            (
                _on_update(_OTHER_FIELDS.format("status", _literal(["loadBalancer"]))),
                "this account changes nothing in the status of Services but loadBalancer",
            ),
        ),
    )


def _other_finalizers(which: str) -> str:
    return f"{which}.metadata.?finalizers.orValue([]).filter(name, !(name in {_literal([FINALIZER, OWN_FINALIZER])}))"


def template() -> str:
    """Both policies for the chart: resource -> ``spec``, with ``@NAME@`` where a release fills in its own values."""
    account, provider_id = "@ACCOUNT@", matches(["@PROVIDER_ID@"])
    specs = {"nodes": node_policy(account, provider_id, "@LABELS@"), "services": service_policy(account)}
    return "# Written by tools/chart.py from hub/onboarding/policy.py.\n" + yaml.safe_dump(specs, width=1_000_000)


def _on_update(*conditions: str) -> str:
    return f"request.operation != 'UPDATE' || ({' && '.join(conditions)})"


def _policy(
    account: str, resource: str, variables: Sequence[tuple[str, str]], rules: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": [resource, f"{resource}/*"],
                    "scope": "*",
                }
            ],
        },
        "matchConditions": [
            {"name": "the-hubs-account", "expression": f"request.userInfo.username == {_literal(account)}"}
        ],
        "variables": [{"name": name, "expression": text} for name, text in variables],
        "validations": [dict(zip(_RULE, rule, strict=False)) for rule in rules],
    }

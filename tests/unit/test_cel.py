"""CEL expressions over Services: refused expressions, missing answers, and the cost limit."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hub.cel import MAX_LENGTH, MAX_MESSAGE, CelError, Expression, as_api
from hub.model import Service, ServicePort
from tests.support import build

TEN = "[0,1,2,3,4,5,6,7,8,9]"


def test_an_expression_sees_the_service_as_the_api_has_it() -> None:
    """An expression sees labels, annotations, ports and the cluster's name."""
    service = build.service(name="web", labels={"expose": "yes"}, annotations={"a/b": "c"})
    text = (
        "service.metadata.labels.expose == 'yes' && service.metadata.annotations['a/b'] == 'c' && cluster == 'eu'"
        " && service.metadata.name.startsWith('w') && service.spec.type == 'ClusterIP'"
        " && service.spec.ports.exists(p, p.port > 0)"
    )
    assert Expression(text).matches(service, "eu")
    assert not Expression(text).matches(service, "us")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("service.metadata.name ==", "does not parse: column 25: Syntax error"),
        ("true &&\n  (", "does not parse: line 2, column 4"),
        ("", "does not parse"),
        ("svc.metadata.name == 'a'", "does not parse: column 13: undeclared reference to 'svc"),
        ("cluster + 1 == 2", "does not parse: column 9: found no matching overload"),
        ("1 + 1", "returns int, not a bool"),
        ("'yes'", "returns string, not a bool"),
        ("(" * 500 + "true" + ")" * 500, "does not parse"),
        ("true || " * 1000 + "true", "is longer than 4096 characters"),
        (f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, true)))))", "it loops over too much"),
    ],
)
def test_a_bad_expression_is_refused_when_it_is_read(text: str, message: str) -> None:
    """An expression that does not parse, returns no bool or always costs too much is refused when it is read."""
    with pytest.raises(CelError) as caught:
        Expression(text)
    assert message in str(caught.value)


def test_service_has_the_names_of_the_api() -> None:
    """An expression reads a Service under the API's names; fields that a port lacks are left out."""
    ports = (ServicePort(80), ServicePort(443, "https", "UDP", "h2", "web", 30443))
    service = build.service(
        name="web",
        labels={"a": "b"},
        annotations={"c": "d"},
        ports=ports,
        kind="NodePort",
        families=("IPv6", "IPv4"),
        cluster_ips=("fd00::1",),
        publish_not_ready=True,
    )

    assert as_api(service) == {
        "metadata": {"name": "web", "namespace": "edge", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "type": "NodePort",
            "ports": [
                {"name": "", "port": 80, "protocol": "TCP"},
                {
                    "name": "https",
                    "port": 443,
                    "protocol": "UDP",
                    "targetPort": "web",
                    "appProtocol": "h2",
                    "nodePort": 30443,
                },
            ],
            "ipFamilies": ["IPv6", "IPv4"],
            "clusterIPs": ["fd00::1"],
            "publishNotReadyAddresses": True,
        },
    }


def test_longest_expression_is_accepted() -> None:
    """An expression may have exactly as many characters as are allowed."""
    text = "true".ljust(MAX_LENGTH)

    assert Expression(text).matches(build.service(), "local")
    with pytest.raises(CelError, match=f"^is longer than {MAX_LENGTH} characters$"):
        Expression(f"{text} ")


def test_long_message_of_the_library_is_cut() -> None:
    """A message of the library is shown in part, with and without a place in the expression."""
    word = "a" * 1000

    with pytest.raises(CelError) as caught:
        Expression(word)
    assert str(caught.value) == f"does not parse: column 1: {f'undeclared reference to {word!r}'[:MAX_MESSAGE]}"
    with pytest.raises(CelError) as caught:
        Expression(f"service.metadata.labels['{word}'] == ''").matches(build.service(), "local")
    assert str(caught.value) == f'NOT_FOUND: Key not found in map : "{word}'[:MAX_MESSAGE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("service.metadata.labels.expose == 'yes'", 'Key not found in map : "expose"'),
        ("service.metadata.name", "it returned string, not a bool"),
        ("service.metadata.labels", "it returned map"),
    ],
)
def test_expression_error_affects_only_its_service(text: str, message: str) -> None:
    """A missing key or a result that is no bool is an error for that Service only."""
    with pytest.raises(CelError) as caught:
        Expression(text).matches(build.service(labels={}), "local")
    assert message in str(caught.value)


def test_a_loop_over_everything_ends_within_its_budget() -> None:
    """An expression with a million steps is stopped quickly."""
    ports = tuple(ServicePort(number, f"p{number}") for number in range(1, 101))
    everything = Expression("service.spec.ports.all(a, service.spec.ports.all(b, service.spec.ports.all(c, true)))")
    started = time.monotonic()
    with pytest.raises(CelError, match=r"budget of 10,000 steps is exceeded"):
        everything.matches(Service("edge", "web", ports=ports), "local")
    assert time.monotonic() - started < 1.0


def test_nothing_is_imported_without_an_expression() -> None:
    """Without an expression, neither the hub nor the views import CEL."""
    code = (
        "import sys, hub.app.hub, hub.views.service, hub.views.selector; from hub.registry.spec import ViewsSpec;"
        "hub.views.selector.Selector(ViewsSpec()); print('cel_expr_python' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_hub_without_views_imports_none_of_them() -> None:
    """A hub without views does not import hub.views."""
    code = "import sys, hub.app.hub; print([name for name in sys.modules if name.startswith('hub.views')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

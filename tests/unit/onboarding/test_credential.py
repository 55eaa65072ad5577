"""The kubeconfig that `hub cluster add` writes."""

from __future__ import annotations

from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.proxy import parse_proxy
from hub.kube.secret import Secret
from hub.onboarding.credential import kubeconfig, with_token


def test_the_way_to_the_server_is_kept() -> None:
    """The new kubeconfig has the server, server name and proxy of the administrator's, also after a renewal."""
    given = ClusterAccess(
        "https://api:6443",
        Token(Secret("admins")),
        "x",
        tls_server_name="api.internal",
        proxy=parse_proxy("socks5h://j%40e:p%2Fss@proxy:1080"),
    )
    written = kubeconfig("eu", given, None, Secret("first")).encode()
    renewed = with_token(written, Secret("first"), Secret("second")) or b""
    for content, token in ((written, "first"), (renewed, "second")):
        made = parse_kubeconfig(content, origin="x", policy=KubeconfigPolicy())
        assert made.auth == Token(Secret(token))
        assert (made.server, made.tls_server_name, made.proxy) == (given.server, given.tls_server_name, given.proxy)
